"""A page in headless Chromium, for the tests of ``make test-browser``."""

import os
import shutil
import time
import wave

import pytest
from page_data import one_recording

from espnet_medusa.transcription.page.page import write_page


class Page:
    def __init__(self, driver, folder):
        self.driver, self.folder = driver, folder
        self.js = driver.execute_script

    def show(self, overview: dict, blocks, fragment: str = "") -> None:
        write_page(self.folder / "page.html", overview, blocks)
        self.open(fragment)

    def open(self, fragment: str = "") -> float:
        """Open the written page; return seconds until it is loaded and drawn."""
        self.driver.get("about:blank")
        self.driver.get(f"{(self.folder / 'page.html').as_uri()}{fragment}")
        script = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
        self.wait(lambda: self.js(script) > 0)
        return self.js(script) / 1000

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def find(self, selector: str) -> list:
        return self.driver.find_elements("css selector", selector)

    def click(self, selector: str, number: int = 0) -> None:
        self.find(selector)[number].click()

    def text(self, selector: str) -> str:
        return self.find(selector)[0].text

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        return self.js(script, selector)

    def wait(self, condition):
        end = time.monotonic() + 10.0
        while not (result := condition()):
            assert time.monotonic() < end, "the page did not change"
            time.sleep(0.05)
        return result

    def set_clock(self, milliseconds: float) -> None:
        self.js(
            "const clock = document.getElementById('clock'); clock.value = arguments[0];"
            "clock.dispatchEvent(new Event('input', { bubbles: true }))",
            milliseconds,
        )

    def scroll_to(self, last: str) -> None:
        """Scroll to the end until an element is in the document: the height is estimated."""
        down = "window.scrollTo(0, document.body.scrollHeight)"
        self.wait(lambda: self.js(down) or self.find(last))

    def scheme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, width: int | None) -> None:
        """Set the width of the screen in pixels; None: that of the window."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        name = "setDeviceMetricsOverride" if width else "clearDeviceMetricsOverride"
        self.driver.execute_cdp_cmd(f"Emulation.{name}", size if width else {})

    def elements(self) -> int:
        return self.js("return document.querySelectorAll('body *:not(script)').length")


@pytest.fixture(scope="module")
def driver():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    flags = ["headless=new", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,1000"]
    flags += ["autoplay-policy=no-user-gesture-required", "mute-audio"]
    for flag in [*flags, *(["no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(f"--{flag}")
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield found
    found.quit()


@pytest.fixture
def page(driver, tmp_path):
    """A page whose console must have no message at the end of the test."""
    driver.get_log("browser")
    made = Page(driver, tmp_path)
    made.scheme("light")
    yield made
    assert driver.get_log("browser") == []


@pytest.fixture
def recording(page):
    overview, blocks = one_recording(audio="recordings/talk #1, 100%.wav")
    audio = page.folder / blocks[0]["audio"]["src"]
    audio.parent.mkdir()
    with wave.open(str(audio), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
        sound.writeframes(bytes(2 * int(8000 * overview["utterances"][0]["seconds"])))
    page.show(overview, blocks)
    return overview, blocks
