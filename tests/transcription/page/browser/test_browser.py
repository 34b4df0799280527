"""The page in headless Chromium: `make test-browser` installs selenium and selects these."""

import time
from pathlib import Path

import pytest
from cases import combinations
from page_data import beam_recording, corpus, one_recording

pytestmark = pytest.mark.browser
OPENED_S = 2.0
MOST_ELEMENTS = 2000
HOSTILE = "</script><img src=x onerror='window.hit=1'><b>bold</b><script>window.hit=1</script>"
# Moves up by 100 px per frame; how far a passage on the screen moves each time.
SCROLL_UP = """
const [steps, done] = arguments, moved = [];
const top = (passage) => passage.getBoundingClientRect().top;
const step = () => {
  const passage = [...document.querySelectorAll(".passage")].find((one) => top(one) > 200);
  const before = top(passage);
  window.scrollBy(0, -100);
  requestAnimationFrame(() => requestAnimationFrame(() => {
    moved.push(Math.round(top(passage) - before));
    moved.length < steps ? step() : done(moved);
  }));
};
step();
"""
CONTRASTS = Path(__file__).with_name("contrasts.js").read_text(encoding="utf-8")


def test_one_recording_opens_directly(page, recording):
    overview, _ = recording
    assert page.text("h1") == "talk1" and not page.find("#back")[0].is_displayed()
    assert not page.find("#list")[0].is_displayed()
    rows = page.texts("#summary tbody tr")
    assert len(rows) == 3 and str(overview["utterances"][0]["summary"]["calls"]) in rows[0]
    assert "faster" in rows[2] and len(page.find(".acceptance li")) == 4


def test_every_control_has_a_name(page, recording):
    nameless = page.js(
        "return [...document.querySelectorAll('button, input, select, [role=slider]')]"
        ".filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length)).length"
    )
    assert nameless == 0


@combinations(absent=["audio", "words", "baseline", "attempts", "passages", "summary"])
def test_missing_data_leaves_out_its_parts(page, absent):
    overview, blocks = one_recording(audio="data:audio/wav;base64,")
    blocks[0]["audio"] = None
    if absent == "passages":
        blocks[0]["passages"] = []
        overview["utterances"][0]["error"] = "the file has no audio"
    elif absent == "summary":
        overview["utterances"][0] |= {"summary": None, "baseline": None}
    elif absent != "audio":
        blocks[0]["passages"][0][absent] = None if absent == "baseline" else []
    page.show(overview, blocks)
    page.press("\ue014", " ", "j", "k", "\ue007", "r", "\ue012", "\ue00c", " ")
    assert not page.find("#player")[0].is_displayed() and not page.find(".from")
    assert len(page.find(".lane")) == {"baseline": 1, "passages": 0, "attempts": 1}.get(absent, 2)
    assert bool(page.find(".word")) == (absent not in ("words", "passages"))
    assert page.find("#failure")[0].is_displayed() == (absent == "passages")


def test_hostile_texts_create_no_element(page):
    overview, blocks = corpus(3)
    blocks = list(blocks)
    overview |= {"title": HOSTILE, "drafter": HOSTILE}
    overview["utterances"][1] |= {"id": HOSTILE, "error": HOSTILE, "text": HOSTILE}
    block = blocks[1]
    block["audio"] = {"src": f"javascript:window.hit=1//{HOSTILE}", "peaks": [1, 255]}
    block["alignment"] = [{"op": op, "reference": HOSTILE, "hypothesis": HOSTILE} for op in "=SDI"]
    for passage in block["passages"]:
        passage["words"] = [{"text": HOSTILE, "start_s": 0.0, "end_s": 1.0}]
        for part in (passage["attempts"][0], passage["baseline"]):
            part["tokens"] = [token | {"text": HOSTILE} for token in part["tokens"]]
            for node in (node for call in part["calls"] for node in call["nodes"]):
                node[1], node[5] = HOSTILE, [[HOSTILE, -1.0]]
    page.show(overview, blocks)
    unsafe = "img, b, iframe, object, script:not([type])"
    assert len(page.find(unsafe)) == 1 and HOSTILE in page.texts("#rows th")
    page.click("#rows [data-row='1'] .error")
    page.wait(lambda: page.find("#failure")[0].is_displayed())
    for selector in ("h1", ".word", ".token", "#nodes th .token", "del", "ins"):
        assert HOSTILE in page.texts(selector), selector
    assert len(page.find(unsafe)) == 1 and page.js("return window.hit === undefined")
    page.driver.get_log("browser")  # the audio is refused, which is logged


def test_table_sorts_filters_opens_and_returns(page):
    page.show(*corpus(400))
    ids = page.texts("#rows th")
    for column, name in enumerate(("id", "seconds", "wer", "tokens_per_call", "total_ms")):
        for direction in ("ascending", "descending"):
            page.click("#headers button", column)
            headers = [h.get_attribute("aria-sort") for h in page.find("#headers th[aria-sort]")]
            assert headers == ["none"] * column + [direction] + ["none"] * (4 - column), name
            values = page.texts(f"#rows [data-row] > :nth-child({column + 1})") if column else []
            numbers = [float(value.replace(",", "").split()[0]) for value in values]
            assert numbers == sorted(numbers, reverse=direction == "descending")
    page.click("#headers button", 0)
    assert page.texts("#rows th") == ids
    page.js("window.scrollTo(0, 5000)")
    page.wait(lambda: page.find("#rows [data-row='150']"))
    name = page.text("#rows [data-row='150'] th")
    page.click("#rows [data-row='150'] .text")
    page.wait(lambda: page.text("h1") == name)
    assert page.js("return decodeURIComponent(location.hash)") == f"#{name}"
    assert page.js("return scrollY") == 0
    page.click("#back")
    page.wait(lambda: page.find("#list")[0].is_displayed())
    assert page.js("return scrollY") == 5000 and page.find("#rows .active th")[0].text == name
    page.driver.back()
    page.wait(lambda: page.text("h1") == name)
    page.press("\ue00c")
    page.wait(lambda: page.find("#list")[0].is_displayed())
    page.click("#filter")
    page.press("120007-")
    page.wait(lambda: page.text("#count") == "20 of 400 utterances")
    assert all("120007-" in one for one in page.texts("#rows th"))


def test_keys_in_the_table(page):
    page.show(*corpus(300))
    page.press("j", "j", "\ue015", "k")
    assert page.js("return document.activeElement.dataset.row") == "1"
    page.press(*["j"] * 60)
    assert page.js("return document.activeElement.dataset.row") == "61"
    row = page.find("#rows .active")[0]
    assert 0 < page.js("return arguments[0].getBoundingClientRect().top", row) < 1000
    name = row.text.split()[0]
    page.press("\ue007")
    page.wait(lambda: page.text("h1") == name)
    page.press("\ue00c")
    page.wait(lambda: page.find("#list")[0].is_displayed())
    assert page.js("return document.activeElement.dataset.row") == "61"
    page.press("/")
    assert page.js("return document.activeElement.id") == "filter"
    page.press("\ue00c", "?")
    assert page.js("return document.getElementById('keys').open")
    page.press("\ue00c")
    assert not page.js("return document.getElementById('keys').open")
    assert page.find("#list")[0].is_displayed()


def test_the_address_names_the_utterance(page):
    overview, blocks = corpus(5)
    overview["utterances"][2]["id"] = "a/b c#%ü"
    page.show(overview, blocks, "#a%2Fb%20c%23%25%C3%BC")
    assert page.text("h1") == "a/b c#%ü"
    page.open("#%unknown")
    assert page.find("#list")[0].is_displayed()


def test_a_failed_utterance_shows_its_reason(page):
    overview, blocks = corpus(12)
    page.show(overview, blocks)
    rates = [one["wer"] for one in overview["utterances"] if one["wer"]]
    errors, words = (sum(rate[name] for rate in rates) for name in ("errors", "words"))
    rate = f"{100 * errors / words:.1f} % of {words} words"
    assert page.text("#about") == f"12 utterances, 1 failed, greedy search, WER {rate}"
    assert page.text("#rows [data-row='7'] .error") == "failed: the file has no audio"
    page.click("#headers button", 2)
    assert page.texts("#rows [data-row='0'] td:nth-child(3)")[0] != "–"


def test_errors_are_marked(page):
    overview, blocks = one_recording()
    pairs = [("=", "a", "a"), ("S", "b", "c"), ("D", "d", ""), ("I", "", "e")]
    names = ("op", "reference", "hypothesis")
    blocks[0]["alignment"] = [dict(zip(names, pair, strict=True)) for pair in pairs]
    overview["utterances"][0]["wer"] = {"errors": 3, "words": 3}
    page.show(overview, blocks)
    assert page.text("#alignment") == "a b c d e"
    assert page.texts("#alignment del") == ["b", "d"] and page.texts("#alignment ins") == ["c", "e"]
    title = "3 errors: 1 substitution, 1 deletion, 1 insertion, WER 100.0 % of 3 words"
    assert page.text("#errors-title") == title


def test_many_errors_are_shown_on_request(page):
    overview, blocks = one_recording()
    blocks[0]["alignment"] = [{"op": "S", "reference": "a", "hypothesis": "b"}] * 700
    page.show(overview, blocks)
    page.click("#errors-title")
    assert len(page.find("#alignment del")) == 200
    page.click("#more-errors")
    assert len(page.find("#alignment del")) == 700 and page.find("#alignment")[0].is_displayed()


def test_click_on_a_token_shows_its_call(page, recording):
    _, blocks = recording
    calls = blocks[0]["passages"][0]["attempts"][0]["calls"]
    number = next(n for n, call in enumerate(calls) if not all(node[4] for node in call["nodes"]))
    page.click(f".group[data-call='{number}'] .token")
    assert page.text("#call-title") == f"Decoder call {number + 1} of {len(calls)}"
    drafts = [node for node in calls[number]["nodes"] if node[2]]
    kept = sum(node[4] for node in drafts)
    assert f"{len(drafts)} tokens, {kept} kept" in page.text("#call-facts")
    assert len(page.find("#nodes .kept")) == kept and page.find("#nodes .rejected")
    rejected = drafts[kept][1].strip()
    text, score = calls[number]["nodes"][kept][5][0]
    row = page.text("#nodes .rejected")
    assert rejected in row and f"“{text.strip()}” {100 * 2.718281828**score:.0f} %" in row
    assert page.find(".group.current")[0].get_attribute("data-call") == str(number)


def test_a_beam_shows_its_tree_and_scores(page):
    page.show(*beam_recording())
    rows = page.texts("#nodes tbody tr")
    assert len(rows) == 7 and "“we” −0.40, “the” −1.30, “so” −2.20" in rows[1]
    assert len(page.find(".lane")) == 1 and len(page.find(".token.unverified")) == 2  # and legend
    page.click("#next")
    assert "end of text" in page.texts("#nodes tbody tr")[0]


def test_slider_changes_both_lanes(page, recording):
    _, blocks = recording
    passage = blocks[0]["passages"][0]
    for clock in (0.0, 6.0, 20.0, 1e6):
        page.set_clock(clock)
        for lane, decoding in enumerate((passage["attempts"][0], passage["baseline"])):
            end, done = decoding["start_ms"], 0
            for call in decoding["calls"]:
                end += call["drafting_ms"] + call["verification_ms"]
                done += end <= clock
            progress = page.texts(".lane .progress")[lane]
            assert progress.startswith(f"{done} of {len(decoding['calls'])} calls, ")
            text = "".join(token["text"] for token in decoding["tokens"] if token["call"] < done)
            assert page.texts(".lane .so-far")[lane] == text.strip()
    page.click("#run")
    page.wait(lambda: page.texts(".lane .progress")[0].startswith("3 of"))
    page.click("#run")
    ours, baseline = (int(text.split()[0]) for text in page.texts(".lane .progress"))
    assert 0 < ours < baseline + 3 and page.text("#call-title").startswith(f"Decoder call {ours} ")


def test_keys_step_through_the_calls(page, recording):
    page.press("\ue014", "\ue014", "\ue012")
    assert page.text("#call-title").startswith("Decoder call 2 ")
    assert page.texts(".lane .progress")[0].startswith("2 of")
    page.press("r")
    page.wait(lambda: page.text("#call-title").startswith("Decoder call 4 "))
    page.press("r")
    assert page.text("#run") == "Replay"


def test_the_word_follows_the_audio(page, recording):
    _, blocks = recording
    words = blocks[0]["passages"][0]["words"]
    script = "document.getElementById('audio').currentTime = arguments[0]"
    now = "return document.querySelector('.word.now')?.dataset.word"
    for number in (3, 10, 0, len(words) - 1):
        page.js(script, words[number]["start_s"] + 0.1)
        page.wait(lambda n=number: page.js(now) == str(n))
        assert page.texts(".word.now") == [words[number]["text"].strip()]
    page.js(script, words[3]["end_s"] + 0.02)
    page.wait(lambda: not page.find(".word.now"))


def test_player(page, recording):
    _, blocks = recording
    state = (
        "const audio = document.getElementById('audio'); return [audio.paused, audio.currentTime]"
    )
    page.click(".word", 10)
    start = blocks[0]["passages"][0]["words"][10]["start_s"]
    page.wait(lambda: page.js(state)[1] > start + 0.1 and page.text("#play") == "Pause")
    page.press(" ")
    page.wait(lambda: page.js(state)[0] and page.text("#play") == "Play")
    page.click("#waveform")
    page.wait(lambda: page.text("#time") == "0:04.8")
    page.press("\ue012")
    page.wait(lambda: page.text("#time") == "0:00.0")
    page.press("\ue007")
    page.wait(lambda: not page.js(state)[0])
    page.click("#play")
    page.click("#speed option:last-child")
    assert page.js("return document.getElementById('audio').playbackRate") == 2


def test_missing_audio_is_a_message(page):
    page.show(*one_recording(audio="lost.wav"))
    page.wait(lambda: page.find("#failure")[0].is_displayed())
    assert page.text("#failure") == "The audio cannot be played: lost.wav"
    page.driver.get_log("browser")  # has the missing file


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page, scheme):
    page.scheme(scheme)
    seen, recordings = set(), {"one": one_recording(), "long": one_recording(12)}
    for name, data in {"corpus": corpus(60), "beam": beam_recording(), **recordings}.items():
        page.show(*data)
        if name == "one":
            page.set_clock(10)
        elif name == "long":
            page.press("j", "j")
        found = page.js(CONTRASTS)
        seen |= {kind for _, kind, _ in found}
        assert [one for one in found if one[0] < 4.5] == [], name
    page.press("?")
    assert min(page.js(CONTRASTS))[0] >= 4.5
    for kind in ("MARK", "DEL", "INS", "KBD", "SPAN.beyond", "SPAN.token draft shade-5"):
        assert kind + ("" if "." in kind else ".") in seen


def test_an_hour_opens_at_once_and_scrolls(page):
    page.show(*one_recording(passages=200, words=45))
    assert min(page.open() for _ in range(3)) < OPENED_S
    most = page.elements()
    for _ in range(60):
        page.js("window.scrollBy(0, 1500)")
        most = max(most, page.elements())
    page.scroll_to("[data-passage='199']")
    assert most < MOST_ELEMENTS
    page.js("window.scrollTo(0, 30000)")
    moved = page.driver.execute_async_script(SCROLL_UP, 60)
    assert all(99 <= pixels <= 101 for pixels in moved), "unmeasured heights move the text"
    page.scroll_to("[data-passage='199']")
    page.click("[data-passage='199'] .token")
    assert page.text("#replay-title") == "Replay of passage 200 of 200"
    page.press("k", "k")
    assert page.text("#replay-title") == "Replay of passage 198 of 200"


def test_attempts_of_a_passage(page):
    page.show(*one_recording(passages=12, words=20))
    page.press("j", "j")
    page.wait(lambda: page.find("[data-passage='2'].selected"))
    first, second = page.texts("[data-passage='2'] .attempt")
    assert "discarded" in first and "compression 5.13 > 2.40" in first
    assert "chosen" in second and "temperature 0.2" in second
    page.click("[data-passage='2'] .attempt")
    assert page.texts("[data-passage='2'] .token")[:2] == ["and", "then"]
    assert page.texts(".lane .so-far")[0].startswith("and then and")


def test_five_thousand_rows_open_at_once_and_scroll(page):
    page.show(*corpus(5000))
    assert min(page.open() for _ in range(3)) < OPENED_S
    most = page.elements()
    for _ in range(60):
        page.js("window.scrollBy(0, 3000)")
        most = max(most, page.elements())
    page.wait(lambda: page.find("#rows [data-row='4999']"))
    assert most < MOST_ELEMENTS
    started = time.monotonic()
    page.click("#headers button", 2)
    page.wait(lambda: page.find("#rows [data-row='0']"))
    assert time.monotonic() - started < OPENED_S
