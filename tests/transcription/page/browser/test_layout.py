"""The layout of the page on narrow and wide screens, with short and long texts."""

import pytest
from page_data import beam_recording, corpus, one_recording

pytestmark = pytest.mark.browser
WIDTHS = (360, 480, 700, 768, 1000, 1024, 1200, 1366, 1440, 1920)
NAME = "Donaudampfschifffahrtselektrizitaetenhauptbetriebswerkbauunterbeamtengesellschaft"
JAPANESE = "会議の録音をそのまま保存したとても長い名前のファイル"
# Elements whose content is wider than they are, or that end after the screen or their card.
# The text of a row in the table of utterances is a preview, which ends in an ellipsis.
CUT = """
const shown = [...document.querySelectorAll("main *, header *")].filter((one) => one.offsetParent);
const wide = (one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0
  && getComputedStyle(one).display !== "inline";
const outside = (one) => {
  const card = one.closest("#summary > div, .panel, .passage, #table") ?? document.documentElement;
  return one.getBoundingClientRect().right > card.getBoundingClientRect().right + 1;
};
const preview = (one) => one.matches("#rows .text, #rows .error");
return shown.filter((one) => (wide(one) || outside(one)) && !preview(one))
  .map((one) => `${one.tagName} ${one.id} ${one.className} ${one.textContent.slice(0, 20)}`);
"""
# Of each card of the summary: the part of its width and height that the content takes.
USED = """
return [...document.querySelectorAll("#summary > div")].map((card) => {
  const [box, style] = [card.getBoundingClientRect(), getComputedStyle(card)];
  const parts = [...card.children].map((part) => part.getBoundingClientRect());
  const room = (sides) => sides.reduce((sum, side) => sum + parseFloat(style[side]), 2);
  const [left, right] = [parts.map((part) => part.left), parts.map((part) => part.right)];
  const width = Math.max(...right) - Math.min(...left);
  const height = parts.at(-1).bottom - parts[0].top;
  return [
    width / (box.width - room(["paddingLeft", "paddingRight"])),
    height / (box.height - room(["paddingTop", "paddingBottom"])),
  ];
});
"""


def large_corpus() -> tuple[dict, list[dict]]:
    """Return a test set of long ids, texts without spaces, and a thousandfold of the audio."""
    overview, blocks = corpus(12)
    for number, entry in enumerate(overview["utterances"]):
        entry["id"] = f"{(NAME, JAPANESE, 'interview with a long file name')[number % 3]}_{number}"
        entry["text"] = (NAME, JAPANESE * 4, entry["text"])[number % 3]
        for figures in (entry["summary"] or {}, entry["baseline"] or {}):
            kept = ("tokens_per_call", "acceptance")
            figures |= {name: 1000 * n for name, n in figures.items() if name not in kept}
    return overview | {"drafter": "ctc+heads"}, list(blocks)


def long_words() -> tuple[dict, list[dict]]:
    """Return a recording whose words and tokens are of 60 characters and more."""
    overview, blocks = one_recording(passages=3, audio="data:audio/wav;base64,")
    overview["utterances"][0]["id"] = overview["title"] = NAME
    passage = blocks[0]["passages"][0]
    for decoding in (passage["attempts"][0], passage["baseline"]):
        for token, text in zip(decoding["tokens"], (f" {NAME}", JAPANESE), strict=False):
            token["text"] = text
        for call in decoding["calls"]:
            for node in call["nodes"]:
                node[1], node[5] = NAME, [[JAPANESE, -0.1] for _ in node[5]]
    passage["words"][2]["text"] = f" {NAME}"
    return overview, blocks


def many_steps(steps: int) -> tuple[dict, list[dict]]:
    overview, blocks = one_recording()
    shares = [1 - step / (steps + 1) for step in range(steps)]
    overview["utterances"][0]["summary"]["acceptance"] = shares
    return overview, blocks


def without_baseline() -> tuple[dict, list[dict]]:
    overview, blocks = one_recording()
    overview["utterances"][0]["baseline"] = blocks[0]["passages"][0]["baseline"] = None
    return overview, blocks


PAGES = {
    "corpus": lambda: corpus(40),
    "large corpus": large_corpus,
    "recording": lambda: one_recording(12, audio="data:audio/wav;base64,"),
    "long words": long_words,
    "beam": beam_recording,
    "one step": lambda: many_steps(1),
    "eight steps": lambda: many_steps(8),
    "forty steps": lambda: many_steps(40),
    "no baseline": without_baseline,
}


@pytest.fixture
def resized(page):
    yield page.resize
    page.resize(None)


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_and_cards_are_filled(page, resized, name):
    page.show(*PAGES[name]())
    for width in WIDTHS:
        resized(width)
        assert page.js("return document.documentElement.scrollWidth") <= width, width
        assert page.js(CUT) == [], width
        for used in page.js(USED):
            assert min(used) > 0.7, (width, used)
    page.driver.get_log("browser")  # has the empty audio


def test_controls_are_large_enough_for_fingers(page, resized):
    resized(360)
    page.show(*one_recording(12, audio="data:audio/wav;base64,"))
    heights = page.js(
        "return [...document.querySelectorAll('button, select, input:not([type=range])')]"
        ".filter((one) => one.offsetParent).map((one) => one.offsetHeight)"
    )
    assert len(heights) > 5 and min(heights) >= 36
    page.driver.get_log("browser")  # has the empty audio
