"""The page's file: structure, data, escaping, policy, atomic writing."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from page_data import beam_recording, corpus, one_recording

from espnet_medusa.page.page import FOLDER, write_page

HOSTILE = [
    "</script><script>alert(1)</script>", "<!-- <script>", "]]>", "<img src=x onerror=alert(1)>",
    "&lt;b&gt;", "a\u2028b\u2029c", "\\u003c", '"\'`${1}', "{{data}}{{script}}", "\x1b\udcff",
]  # fmt: skip


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the texts of scripts, styles and title."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.found, self.texts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag in ("script", "style", "title"):
            self.texts.append((tag, dict(attributes).get("id"), ""))

    def handle_data(self, data):
        if self.lasttag in ("script", "style", "title") and data.strip():
            tag, name, text = self.texts[-1]
            self.texts[-1] = (tag, name, text + data)

    def blocks(self) -> dict:
        return {name: json.loads(text) for tag, name, text in self.texts if name}

    def text(self, wanted: str) -> str:
        return next(text for tag, name, text in self.texts if tag == wanted and name is None)


def written(folder, overview, blocks) -> Elements:
    write_page(folder / "page.html", overview, blocks)
    return Elements((folder / "page.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("make", [one_recording, beam_recording, lambda: corpus(12)])
def test_every_block_parses_back_to_its_data(tmp_path, make):
    overview, blocks = make()
    blocks = list(blocks)
    expected = {"page": overview} | {f"utterance-{n}": block for n, block in enumerate(blocks)}
    assert written(tmp_path, overview, iter(blocks)).blocks() == expected


def test_hostile_texts_stay_data(tmp_path):
    overview, blocks = one_recording()
    clean = written(tmp_path, overview, blocks)
    for text in HOSTILE:
        overview["title"] = overview["utterances"][0]["id"] = text
        overview["utterances"][0]["error"] = text
        for token in blocks[0]["passages"][0]["attempts"][0]["tokens"]:
            token["text"] = text
        found = written(tmp_path, overview, blocks)
        assert found.found == clean.found and found.blocks()["utterance-0"] == blocks[0]
        assert found.text("title") == text.replace("\udcff", "?")
        raw = (tmp_path / "page.html").read_text(encoding="utf-8")
        data = re.search('<script type="application/json" id="utterance-0">(.*)</script>', raw)[1]
        assert not set(data) & set("<>&\u2028\u2029")


def test_the_policy_allows_exactly_this_script_and_style(tmp_path):
    page = written(tmp_path, *one_recording())
    contents = {attributes.get("http-equiv"): attributes for _, attributes in page.found}
    policy = contents["Content-Security-Policy"]["content"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        digest = hashlib.sha256(page.text(tag).encode()).digest()
        assert rules.pop(rule) == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert rules == {
        "default-src": "'none'", "media-src": "'self' data: file:", "img-src": "data:",
        "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip


def test_no_address_no_handler_and_no_style_in_markup(tmp_path):
    page = written(tmp_path, *one_recording())
    for tag, attributes in page.found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        assert attributes.get("src") is None and attributes.get("href") in (None, "data:,")
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    unsafe = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?:"
    for name in ("functions.js", "page.js"):
        script = (FOLDER / name).read_text(encoding="utf-8")
        assert not re.search(unsafe, script)
        assert {name for name in re.findall(r'byId\("([\w-]+)"\)', script)} <= set(ids)
    assert {a["for"] for _, a in page.found if "for" in a} <= set(ids)


def test_the_file_is_complete_or_absent(tmp_path):
    overview, blocks = corpus(3)
    blocks = list(blocks)
    path = tmp_path / "new" / "page.html"

    def broken():
        yield blocks[0]
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        write_page(path, overview, broken())
    assert not list(path.parent.iterdir())
    write_page(path, overview, blocks)
    before = path.read_bytes()
    for wrong in (blocks[:2], [*blocks, blocks[0]]):
        with pytest.raises(ValueError, match=f"3 utterances, but there are {len(wrong)}"):
            write_page(path, overview, wrong)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_page(path, overview, [blocks[0], {"audio": float("nan")}, blocks[1]])
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_blocks_are_written_one_by_one(tmp_path):
    overview, blocks = corpus(40)
    alive = []

    def watched():
        for number, block in enumerate(blocks):
            alive.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
            yield block | {"number": number}

    write_page(tmp_path / "page.html", overview, watched())
    assert len(set(alive)) > 10 and sorted(alive) == alive


def test_the_page_is_small(tmp_path):
    """Without data it has at most 100 kB; an hour of audio at most 6 MB."""
    overview, blocks = one_recording(passages=200, words=45)
    written(tmp_path, overview, blocks)
    size = (tmp_path / "page.html").stat().st_size
    data = sum(len(json.dumps(part, separators=(",", ":"))) for part in (overview, blocks[0]))
    assert size - data < 100_000 and size < 6_000_000
