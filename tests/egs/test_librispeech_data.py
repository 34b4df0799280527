"""LibriSpeech's data preparation on small trees in its layout, with planted errors."""

import json
import re
import shutil
from pathlib import Path

import librispeech_miniature as miniature
import pytest
import soundfile
from cases import cases
from librispeech_corpus import measure_audio, read_genders, read_manifest
from librispeech_miniature import RATE_HZ, SUBSETS, errors, make_librispeech, murmur, run

from espnet_medusa.data.audio.reader import AudioError
from espnet_medusa.data.kaldi.data_dir import validate_data_dir
from espnet_medusa.data.kaldi.table import read_table

# One chapter of test-clean in the miniature.
READER, CHAPTER = "101", "1101"
KEYS = [f"{READER}-{CHAPTER}-{n:04d}" for n in range(3)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All seven subsets and their manifests; tests only read them."""
    folder = tmp_path_factory.mktemp("whole")
    corpus = make_librispeech(folder)
    return corpus, miniature.make_librispeech_pc(folder / "pc", corpus)


@pytest.fixture
def small(tmp_path):
    """A test and a dev subset, to break."""
    return make_librispeech(tmp_path, ("dev-clean", "test-clean"), duration_s=(0.3, 0.5))


def prepare_small(corpus: Path, *options) -> int:
    names = [path.name for path in corpus.iterdir() if path.is_dir()]
    plain = ["--librispeech_pc", "false", "--librispeech", corpus, "--subsets", *sorted(names)]
    return run(corpus.parent, *plain, *options)


def transcripts_of(corpus: Path) -> Path:
    return corpus / "test-clean" / READER / CHAPTER / f"{READER}-{CHAPTER}.trans.txt"


def test_all_subsets_become_kaldi_directories(whole, tmp_path, capsys):
    corpus, manifests = whole
    assert run(tmp_path, "--librispeech", corpus, "--librispeech_pc_dir", manifests) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    data = tmp_path / "data"
    names = {name.replace("-", "_") for name in SUBSETS} | {"train_460", "train_960", "dev"}
    assert {path.name for path in data.iterdir()} == names
    for subset in SUBSETS:
        folder = data / subset.replace("-", "_")
        assert validate_data_dir(folder) == []
        paths = read_table(folder / "wav.scp")
        assert {Path(path) for path in paths.values()} == set((corpus / subset).rglob("*.flac"))
        assert all(Path(path).stem == key for key, path in paths.items())
        assert set(read_table(folder / "utt2lang").values()) == {"en"}
        for key, speaker in read_table(folder / "utt2spk").items():
            assert speaker == key.rpartition("-")[0]
            reader = int(key.split("-")[0])
            assert read_table(folder / "spk2gender")[speaker] == "fm"[reader % 2]
            assert read_table(folder / "utt2gender")[key] == "fm"[reader % 2]
        assert f"{folder.name}: 6 utterances" in captured.err
        assert "2 not in LibriSpeech-PC" in captured.err
    for combined, parts in {
        "train_460": ["train_clean_100", "train_clean_360"],
        "train_960": ["train_clean_100", "train_clean_360", "train_other_500"],
        "dev": ["dev_clean", "dev_other"],
    }.items():
        assert validate_data_dir(data / combined) == []
        for name in ("wav.scp", "text", "utt2spk", "utt2lang", "spk2gender"):
            joined = {k: v for part in parts for k, v in read_table(data / part / name).items()}
            assert read_table(data / combined / name) == joined


@pytest.mark.parametrize("case", ["lower", "upper"])
def test_restored_text_with_the_plain_one_as_fallback(whole, tmp_path, case):
    corpus, manifests = whole
    options = ["--librispeech", corpus, "--subsets", "test-other", "--plain_case", case]
    assert run(tmp_path, *options, "--librispeech_pc_dir", manifests) == 0
    texts = read_table(tmp_path / "data" / "test_other" / "text")
    restored, _ = read_manifest(manifests / "test-other.json")
    assert len(restored) == 4 and len(texts) == 6
    tables = map(read_table, (corpus / "test-other").rglob("*.trans.txt"))
    plain = {key: text for table in tables for key, text in table.items()}
    for key, text in plain.items():
        written = text.lower() if case == "lower" else text
        assert texts[key] == (miniature.restore(text) if key in restored else written)
    assert run(tmp_path, *options, "--librispeech_pc", "false") == 0
    again = read_table(tmp_path / "data" / "test_other" / "text")
    assert {key: text.upper() for key, text in again.items()} == plain


def cut_short(content: bytes) -> bytes:
    return content[: int(len(content) * 0.6)]


def change_line(line: bytes):
    """Return an edit of a transcript file that replaces its second line."""

    def edit(content: bytes) -> bytes:
        first, _, last = content.splitlines(keepends=True)
        return first + line + last

    return edit


KEY = KEYS[1].encode()


@cases(
    ("trans.txt", change_line(b""), r"{}: is missing \({}.flac is there\);"),
    ("trans.txt", change_line(KEY + b" \n"), r"{}: has no value \(line 2\); add the value"),
    ("trans.txt", change_line(KEY + b" CAF\xc9\n"), "{}: line 2 is not UTF-8"),
    ("trans.txt", lambda old: old + KEY + b" MORE\n", "{}: occurs again in line 4;"),
    ("flac", None, r"{}: is missing \(its transcript is in .*trans.txt\); copy it"),
    ("flac", cut_short, "{}: is (corrupt or )?truncated .*; copy it again"),
    ("flac", lambda _: b"<html>not found</html>", "{}: "),
    ("flac", lambda _: b"", "{}: is an empty file; copy it again"),
)
def test_planted_error_is_one_line_and_the_rest_is_prepared(name, edit, message, small, capsys):
    path = transcripts_of(small)
    if name == "flac":
        path = path.with_name(f"{KEYS[1]}.flac")
    if edit is None:
        path.unlink()
    else:
        path.write_bytes(edit(path.read_bytes()))
    assert prepare_small(small) == 3
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    assert re.search(f"{path.name}: " + message.replace("{}", KEYS[1]), line), line
    folder = small.parent / "data" / "test_clean"
    assert validate_data_dir(folder) == []
    assert len(read_table(folder / "text")) == 5 and KEYS[1] not in read_table(folder / "text")
    assert list(read_table(folder / "bad_utterances")) == [KEYS[1]]
    assert len(read_table(small.parent / "data" / "dev_clean" / "text")) == 6
    assert "1 left out" in captured.err
    assert f"test-clean: not complete, see {folder}" in captured.err


def test_errors_outside_test_sets_count_too_until_the_corpus_is_mended(small, capsys):
    (broken,) = small.rglob("61-1061-0001.flac")
    good = broken.read_bytes()
    broken.write_bytes(cut_short(good))
    assert prepare_small(small) == 3
    assert len(capsys.readouterr().out.splitlines()) == 1
    folder = small.parent / "data" / "dev_clean"
    assert list(read_table(folder / "bad_utterances")) == ["61-1061-0001"]
    assert len(read_table(folder / "text")) == 5
    broken.write_bytes(good)
    assert prepare_small(small) == 0
    assert len(read_table(folder / "text")) == 6 and not (folder / "bad_utterances").exists()


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("")])
def test_chapter_without_transcripts_is_one_line(small, capsys, change):
    change(transcripts_of(small))
    assert prepare_small(small) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{READER}-{CHAPTER}.trans.txt: {READER}-{CHAPTER}: " in line
    assert "3 FLAC files have no transcript" in line
    assert len(read_table(small.parent / "data" / "test_clean" / "text")) == 3


def test_every_truncation_is_found_without_decoding_all(tmp_path):
    path = tmp_path / "a.flac"
    soundfile.write(path, murmur(1.5, 0), RATE_HZ, subtype="PCM_16")
    content = path.read_bytes()
    assert measure_audio(path) == 1.5
    missed = []
    for end in [*range(1, len(content), 997), len(content) - 10, len(content) - 1]:
        path.write_bytes(content[:end])
        try:
            measure_audio(path)
            missed.append(end)
        except AudioError as error:
            assert "\n" not in str(error) and str(path) in str(error)
    assert missed == []


def test_long_utterances_are_left_out_of_validation_only(tmp_path, capsys):
    corpus = make_librispeech(tmp_path, ("dev-clean", "dev-other"), 1, 3, (0.3, 0.5))
    (long,) = corpus.rglob("61-1061-0001.flac")
    soundfile.write(long, murmur(1.2, 0), RATE_HZ)
    assert prepare_small(corpus, "--max_valid_s", "1") == 0
    assert "dev: 5 utterances, 0.00 h, 1 above 1 s left out" in capsys.readouterr().err
    clean, valid = (read_table(tmp_path / "data" / name / "text") for name in ("dev_clean", "dev"))
    assert clean.keys() - valid.keys() == {"61-1061-0001"}


def test_genders_need_speakers_txt(small, capsys):
    speakers = small / "SPEAKERS.TXT"
    content = speakers.read_text()
    assert read_genders(speakers)[0] == {"61": "m", "62": "f", "101": "m", "102": "f"}
    speakers.write_text(content.replace("| F | test-clean ", "| ? | test-clean "))
    assert prepare_small(small) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and all("SPEAKERS.TXT: line 8: is not 'reader | F or M" in line for line in lines)
    folder = small.parent / "data" / "test_clean"
    assert read_table(folder / "spk2gender") == {"101-1101": "m"}
    speakers.unlink()
    assert prepare_small(small) == 0
    assert not (folder / "spk2gender").exists() and not (folder / "utt2gender").exists()


def test_bad_lines_of_a_manifest_are_named(tmp_path):
    good = {"audio_filepath": "dev-clean/1/2/1-2-0000.flac", "text": " Yes,  he\tdid. "}
    entries = [
        {"text": "No path."},
        {"audio_filepath": "dev-clean/1/2/1-2-0001.flac", "text": None},
        {"audio_filepath": "dev-clean/1/2/1-2-0002.flac", "text": " "},
        good | {"text": "Another."},
    ]
    path = tmp_path / "dev-clean.json"
    path.write_text("\n".join([json.dumps(good), "{", *map(json.dumps, entries), "7", ""]))
    texts, problems = read_manifest(path)
    assert texts == {"1-2-0000": "Yes, he did."}
    assert [problem.id for problem in problems] == [f"line {n}" for n in (2, 3, 4, 5, 6, 7)]
    assert all(str(path) in str(problem) and "\n" not in str(problem) for problem in problems)


def name_other_utterances(corpus: Path) -> None:
    entry = json.dumps({"audio_filepath": "x/9/9/9-9-0000.flac", "text": "No."})
    for name in ("dev-clean", "test-clean"):
        (corpus.parent / f"{name}.json").write_text(entry)


def remove_chapters(corpus: Path) -> None:
    for path in (corpus / "test-clean").iterdir():
        path.rename(corpus.parent / f"moved-{path.name}")


def repeat_subset(corpus: Path) -> None:
    shutil.copytree(corpus / "dev-clean", corpus / "dev-other")


PC = ["--librispeech_pc", "true", "--librispeech_pc_dir"]


@cases(
    (None, ["--subsets", "train-clean-100"], "neither train-clean-100 nor LibriSpeech/train-"),
    (None, [*PC, "nowhere"], "nowhere: has no dev-"),
    (name_other_utterances, [*PC, "{}"], "dev-clean.json: names none of the 6 utterances"),
    (remove_chapters, [], "test-clean: has no <reader>/<chapter> folders"),
    (repeat_subset, [], "dev: 61-1061-0000 is in two subsets"),
)
def test_unusable_corpora_are_one_line(damage, options, message, small, capsys):
    if damage:
        damage(small)
    assert prepare_small(small, *(option.format(small.parent) for option in options)) == 1
    (line,) = errors(capsys)
    assert message in line and (damage or not (small.parent / "data").exists())
