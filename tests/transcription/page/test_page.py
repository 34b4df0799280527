"""A page's file, its data, escaping and policy; pages of transcribe and of decoded test sets."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import warm_python
import yaml
from cases import cases
from experiment import noise, read_lines, write_corpus, write_lines, write_noise
from page_data import beam_recording, corpus, one_recording
from refusals import assert_refused, exit_status
from tiny_whisper import save_whisper_of_bytes, whisper_experiment

from espnet_medusa.bin import asr_inference, report, transcribe
from espnet_medusa.bin.stage import main as stage
from espnet_medusa.inference.journal import read_journal
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.recipes.report.decodings import DecodedSet
from espnet_medusa.recipes.report.page import has_traces, read_alignments
from espnet_medusa.transcription.page.page import FOLDER, write_page

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
    # No address, no handler and no style in the markup.
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


BLOCK = re.compile('<script type="application/json" id="([^"]*)">([^<]*)</script>')
NOISE = {"search": "greedy", "maxlenratio": -12, "minlenratio": -4, "draft_depth": 3}


def blocks(path):
    data = {name: json.loads(text) for name, text in BLOCK.findall(path.read_text("utf-8"))}
    overview = data.pop("page")
    assert [*data] == [f"utterance-{number}" for number in range(len(overview["utterances"]))]
    return overview, [*data.values()]


def write_config(path, **options):
    path.write_text(yaml.safe_dump(NOISE | {"suppress_tokens": [0, 1, 2]} | options))
    return path


def spoken(decoding):
    return "".join(token["text"] for token in decoding["tokens"] if not token.get("special"))


# In wav.scp, "~talk.wav" would be an error.
@pytest.mark.parametrize(("search", "name"), [("greedy", "talk"), ("beam", "~talk")])
def test_a_page_has_the_decoding_and_the_one_without_drafts(
    experiment, tmp_path, search, name, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    audio, page = Path(f"{name}.wav"), tmp_path / "out" / f"{name}.html"
    write_noise(audio, 0.6, seed=1)
    itself = {"draft_model": str(experiment.folder), "draft_model_file": str(experiment.model)}
    options = {"search": search, "beam_size": 2, "ctc_weight": 0.0, "drafter": "model"}
    config = write_config(tmp_path / "decode.yaml", **options, **itself)
    command = [audio, "--model", experiment.folder, "--config", config]
    command += ["--output_dir", tmp_path / "out", "--output_format", "html"]
    assert exit_status(transcribe.main, *command) == 0
    overview, [shown] = blocks(page)
    [row] = overview["utterances"]
    assert (overview["drafter"], overview["search"]) == ("model", search)
    assert row["text"] == " ".join(read_lines(tmp_path / "out" / "text")[name].split())
    [passage] = shown["passages"]
    [attempt] = passage["attempts"]
    assert attempt["chosen"] and spoken(attempt).split() == row["text"].split()
    assert spoken(passage["baseline"]) == spoken(attempt)
    assert len(attempt["calls"]) == row["summary"]["calls"] < row["baseline"]["calls"]
    assert len(passage["baseline"]["calls"]) == row["baseline"]["calls"]
    assert {token["by"] for token in passage["baseline"]["tokens"]} == {"decoder"}
    assert "draft" in {token["by"] for token in attempt["tokens"]}
    assert shown["audio"]["src"] == f"../{name}.wav" and max(shown["audio"]["peaks"]) == 255

    # The same command takes both decodings from the journals.
    before = page.read_text()
    assert exit_status(transcribe.main, *command) == 0
    assert page.read_text() == before
    embedded = [*command, "--embed_audio", "true", "--html_baseline", "false"]
    assert exit_status(transcribe.main, *embedded) == 0
    overview, [shown] = blocks(page)
    assert overview["utterances"][0]["baseline"] is None
    assert shown["audio"]["src"].startswith("data:audio/flac;base64,")
    # A page that cannot be written is a failure of its file.
    page.unlink()
    page.mkdir()
    assert exit_status(transcribe.main, *embedded) == 3


def test_windows_of_a_long_recording_are_passages_with_attempts_and_words(tmp_path):
    weights = save_whisper_of_bytes(tmp_path / "weights", seed=2, timestamps=True)
    experiment = whisper_experiment(tmp_path, weights)
    write_noise(tmp_path / "long.wav", 65.0, seed=3)
    config = tmp_path / "decode.yaml"
    options = {"search": "greedy", "maxlenratio": -12, "logprob_threshold": 0.0, "language": "de"}
    options |= {"temperature_increment_on_fallback": 0.5, "no_speech_threshold": 1.0}
    options |= {"skip_silence": False, "fallback_on": "any_failure", "best_of": 1}
    config.write_text(yaml.safe_dump(options))
    command = [tmp_path / "long.wav", "--model", experiment.folder, "--config", config]
    command += ["--output_dir", tmp_path, "--output_format", "html"]
    assert exit_status(transcribe.main, *command) == 0
    overview, [shown] = blocks(tmp_path / "long.html")
    assert overview["drafter"] is None and overview["utterances"][0]["baseline"] is None
    starts = [passage["start_s"] for passage in shown["passages"]]
    assert len(starts) > 1 and starts == sorted(starts) and starts[0] == 0
    for passage in shown["passages"]:
        assert passage["end_s"] <= 65 and sum(one["chosen"] for one in passage["attempts"]) == 1
        assert [one["temperature"] for one in passage["attempts"]] == [0.0, 0.5, 1.0]
        assert all(one["average_log_probability"] < 0 for one in passage["attempts"])
    [decoded] = read_journal(tmp_path / "journal.jsonl")[1].values()
    words = [word["text"] for passage in shown["passages"] for word in passage["words"]]
    assert words == [word.text for segment in decoded.segments for word in segment.words]


@cases(
    ({"search": "greedy", "acceptance": "threshold", "threshold": 0.2}, "draft"),
    ({"beam_size": 3, "acceptance": "threshold", "threshold": 1e-6}, "unverified"),
    ({"beam_size": 3, "patience": 1.0}, "draft"),
    ({"search": "greedy", "acceptance": "typical"}, "draft"),
    ({"search": "greedy", "ctc_entropy_threshold": 0.5}, "draft"),
    ({"search": "greedy", "medusa_choices": [1, 2, 2]}, "draft"),
    ({"search": "greedy", "forced_prefix": [4, 5]}, "draft"),
    ({"beam_size": 3, "lookahead": "auto"}, "draft"),
)
def test_every_search_can_be_traced(options, how, experiment):
    base = {"maxlenratio": -12, "minlenratio": -4, "ctc_weight": 0.0, "trace": True}
    base |= {"drafter": "model", "draft_model": str(experiment.folder)}
    base["draft_model_file"] = str(experiment.model)
    speech2text = Speech2Text(experiment.config, experiment.model, **base | options)
    for decoding in speech2text.decode([noise(1), noise(2, 30000)]):
        [passage] = decoding.trace
        [attempt] = passage["attempts"]
        assert spoken(attempt) == decoding.results[0][0]
        assert len(attempt["calls"]) == decoding.statistics.decoder_calls
        assert how in {token["by"] for token in attempt["tokens"]}


@pytest.fixture
def warm_sclite(monkeypatch):
    monkeypatch.setattr("sys.executable", warm_python.executable())


@pytest.fixture
def decoded_sets(experiment, tmp_path, in_folder, warm_sclite):
    (tmp_path / "data").mkdir()
    write_corpus(tmp_path / "data", {"s-a": 0.6, "s-b": 0.9, "s-c": 0.7})
    keys = ("s-a", "s-b", "s-c")
    write_lines(tmp_path / "data" / "utt2spk", dict.fromkeys(keys, "s"))
    write_lines(tmp_path / "data" / "text", dict.fromkeys(keys, "ddfd ab"))
    itself = {"draft_model": str(experiment.folder), "draft_model_file": str(experiment.model)}
    config = write_config(tmp_path / "decode.yaml", trace=True, drafter="model", **itself)
    scp = tmp_path / "data" / "wav.scp"
    for tag, depth in (("drafts", 3), ("plain", 0)):
        folder = tmp_path / "exp" / tag / "data"
        logs = folder / "logdir"
        logs.mkdir(parents=True)
        (logs / "keys.1.scp").write_text(scp.read_text())
        command = [*experiment.options(), "--config", config, "--draft_depth", depth]
        command += ["--data_path_and_name_and_type", f"{scp},speech,sound"]
        asr_inference.main([*map(str, command), "--output_dir", str(logs / "output.1")])
        places = ["--log_dir", str(logs), "--output_dir", str(folder)]
        stage(["merge_outputs", "--keys", str(scp), *places])
        stage(["score", "--data_dir", str(tmp_path / "data"), "--output_dir", str(folder)])
    return tmp_path / "exp"


def test_the_page_of_a_test_set_has_sclites_errors_and_the_baseline(decoded_sets, capsys):
    report.main([str(decoded_sets), "--baseline", str(decoded_sets / "plain"), "--html"])
    folder = decoded_sets / "drafts" / "data"
    overview, shown = blocks(folder / "decoding.html")
    assert not any(row["error"] for row in overview["utterances"])
    texts = read_lines(folder / "text")
    assert [row["id"] for row in overview["utterances"]] == [*texts]
    for row, utterance in zip(overview["utterances"], shown, strict=True):
        assert row["text"] == " ".join(texts[row["id"]].split())
        assert row["baseline"]["calls"] > row["summary"]["calls"]
        said = [pair["hypothesis"] for pair in utterance["alignment"] if pair["op"] != "D"]
        assert said == row["text"].split()
        wrong = sum(pair["op"] != "=" for pair in utterance["alignment"])
        assert row["wer"]["errors"] == wrong
    errors, words = (
        sum(row["wer"][name] for row in overview["utterances"]) for name in ("errors", "words")
    )
    assert f"{100 * errors / words:.1f}" in (folder / "score_wer" / "result.txt").read_text()
    overview, _ = blocks(decoded_sets / "plain" / "data" / "decoding.html")
    assert overview["drafter"] is None
    assert all(row["baseline"] is None for row in overview["utterances"])

    (folder / "failed_utterances").write_text("s-d d.wav: no such file\n")
    report.main([str(decoded_sets), "--html"])
    *_, failed = blocks(folder / "decoding.html")[0]["utterances"]
    assert (failed["id"], failed["text"]) == ("s-d", "")
    assert failed["error"] == "d.wav: no such file"

    for journal in decoded_sets.glob("*/*/logdir/*/journal.jsonl"):
        journal.write_text(journal.read_text().replace('"trace": true', '"trace": false', 1))
    assert exit_status(report.main, decoded_sets, "--html") != 0
    assert "no set has traces" in capsys.readouterr().err


@cases(("", "C"), ("--sclite_options=-s", "S"))
def test_alignments_are_case_sensitive_if_the_score_is(options, letter, tmp_path, warm_sclite):
    for name, text in {"text": "Ab cd", "wav.scp": "a.wav", "utt2spk": "s"}.items():
        write_lines(tmp_path / name, {"s-A": text})
    decoding = DecodedSet(tmp_path / "exp", "tag", "data", {}, {"s-A": "ab cd"})
    decoding.folder.mkdir(parents=True)
    write_lines(decoding.folder / "text", decoding.texts)
    places = ["--data_dir", str(tmp_path), "--output_dir", str(decoding.folder)]
    stage(["score", *places, *filter(None, [options])])
    ((first, *_),) = read_alignments(decoding).values()
    assert first[0] == letter


@pytest.mark.parametrize("header", ["", '{"options": {"tra', "[1]", "{}", "\ufffd"])
def test_a_damaged_journal_is_named(tmp_path, header):
    journal = tmp_path / "logdir" / "output.1" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text(header + "\n")
    assert_refused(f"{journal}: is missing or damaged; decode again", has_traces, tmp_path)
