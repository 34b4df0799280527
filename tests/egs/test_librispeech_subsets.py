"""LibriSpeech's subsets: downloads, mini_librispeech, speakers held out, test sets, chapters."""

import functools
import hashlib
from pathlib import Path

import join_chapters
import librispeech_files
import librispeech_miniature as miniature
import numpy as np
import prepare_librispeech
import pytest
import soundfile
from cases import cases
from downloads import serve
from librispeech_miniature import errors, make_librispeech, make_librispeech_pc, run
from refusals import command_refused

from espnet_medusa.data.kaldi.data_dir import validate_data_dir
from espnet_medusa.data.kaldi.table import read_table, write_table
from espnet_medusa.recipes import download

PLAIN = ("--librispeech_pc", "false")
MINI = ("--part", "5", *PLAIN)


@pytest.fixture
def train(tmp_path):
    """train-clean-5 of the readers 1, 2 and 3, and test-clean."""
    return make_librispeech(tmp_path, ("train-clean-5", "test-clean"), 3, 3, (0.2, 0.4))


def table(folder: Path, set_name: str, name: str = "text") -> dict[str, str]:
    return read_table(folder / "data" / set_name / name)


def made(folder: Path) -> set[str]:
    return {path.name for path in (folder / "data").iterdir()}


def readers(keys) -> set[str]:
    return {key.split("-")[0] for key in keys}


def test_restored_transcripts_are_those_of_the_whole_corpus(tmp_path):
    subsets = ("train-clean-5", "dev-clean-2", "test-clean", "test-other")
    corpus = make_librispeech(tmp_path, subsets, 2, 3, (0.2, 0.4))
    manifests = make_librispeech_pc(tmp_path / "pc", corpus)
    names = {"train-clean-100", "dev-clean", "test-clean", "test-other"}
    assert {path.stem for path in manifests.iterdir()} == names
    options = ["--librispeech", corpus, "--librispeech_pc_dir", manifests]
    assert run(tmp_path, "--part", "5", *options) == 0
    assert made(tmp_path) == {name.replace("-", "_") for name in subsets} | {"dev"}
    assert table(tmp_path, "dev") == table(tmp_path, "dev_clean_2")
    assert readers(table(tmp_path, "dev")) == {"61", "62"}
    for set_name in ("train_clean_5", "dev"):
        assert validate_data_dir(tmp_path / "data" / set_name) == []
        restored = [text for text in table(tmp_path, set_name).values() if text.endswith(".")]
        assert len(restored) == 4, "two readers, of whom each manifest lacks one utterance"


def test_only_needed_files_are_downloaded(tmp_path, monkeypatch):
    subsets = ("train-clean-5", "dev-clean-2", "test-clean")
    source = make_librispeech(tmp_path / "source", subsets, 2, 2, (0.2, 0.4))
    options = ["--download_dir", tmp_path / "downloads", "--test_sets", "test_clean"]
    with serve() as server:
        server.files = miniature.publish(source, monkeypatch, *subsets)
        options += ["--openslr", server.url]
        assert run(tmp_path, *MINI, *options, "--valid_speakers", "2") == 0
        first = [path for path, _ in server.requests]
        assert first == ["/31/train-clean-5.tar.gz", "/12/test-clean.tar.gz"]
        server.requests.clear()
        assert run(tmp_path, *MINI, *options) == 0
        assert [path for path, _ in server.requests] == ["/31/dev-clean-2.tar.gz"]
    assert len(table(tmp_path, "train_clean_5")) == len(table(tmp_path, "dev")) == 4
    assert readers(table(tmp_path, "dev")) == {"61", "62"}
    assert "test_other" not in made(tmp_path)


def test_speakers_leave_the_training_set_and_validate(train, tmp_path, capsys):
    (broken,) = train.rglob("1-1001-0001.flac")
    broken.write_bytes(b"")
    (long,) = train.rglob("3-1003-0001.flac")
    soundfile.write(long, miniature.murmur(1.2, 0), miniature.RATE_HZ)
    options = ["--librispeech", train, "--test_sets", "test_clean", "--max_valid_s", "1"]
    assert run(tmp_path, *MINI, *options, "--valid_speakers", "1", "3") == 3
    assert made(tmp_path) == {"train_clean_5", "dev", "test_clean"}
    for set_name in made(tmp_path):
        assert validate_data_dir(tmp_path / "data" / set_name) == []
    assert readers(table(tmp_path, "train_clean_5")) == {"2"}
    assert readers(table(tmp_path, "dev")) == {"1", "3"}
    assert table(tmp_path, "dev", "spk2gender") == {"1-1001": "m", "3-1003": "m"}
    assert len(table(tmp_path, "test_clean")) == 9
    problems, log = capsys.readouterr()
    assert "1-1001-0001: is an empty file" in problems
    size = "train_clean_5: 3 utterances (1519 published), 0.00 h"
    assert f"{size}, 5 held out to validate on, 1 left out" in log
    assert "dev: 4 utterances, 0.00 h, 1 above 1 s left out" in log
    assert list(table(tmp_path, "train_clean_5", "bad_utterances")) == ["1-1001-0001"]


def test_speakers_of_any_subset_of_a_part(tmp_path):
    corpus = make_librispeech(tmp_path, ("train-clean-100", "train-clean-360"), 2, 2, (0.2, 0.4))
    options = ["--part", "460", *PLAIN, "--librispeech", corpus, "--test_sets"]
    assert run(tmp_path, *options, "--valid_speakers", "2", "21") == 0
    assert made(tmp_path) == {"train_clean_100", "train_clean_360", "train_460", "dev"}
    assert readers(table(tmp_path, "train_clean_100")) == {"1"}
    assert readers(table(tmp_path, "train_460")) == {"1", "22"}
    assert readers(table(tmp_path, "dev")) == {"2", "21"}


def test_a_part_of_a_test_set_is_spread_over_it(train, tmp_path):
    options = ["--librispeech", train, "--test_sets", "test_clean", "--valid_speakers", "1"]
    assert run(tmp_path, *MINI, *options, "--test_utterances", "4") == 0
    whole, part = table(tmp_path, "test_clean"), table(tmp_path, "test_clean_part")
    assert len(whole) == 9 and part.items() <= whole.items()
    keys = sorted(whole)
    assert [*part] == [keys[0], keys[2], keys[4], keys[6]] and len(readers(part)) == 3
    assert validate_data_dir(tmp_path / "data" / "test_clean_part") == []
    assert run(tmp_path, *MINI, *options, "--test_utterances", "40") == 0
    assert table(tmp_path, "test_clean_part") == whole


@pytest.mark.parametrize("sets", [["test_clean", "test_clean_chapters"], ["test_clean_chapters"]])
def test_chapters_of_a_test_set(train, tmp_path, sets, capsys):
    options = ["--librispeech", train, "--valid_speakers", "1", "--test_sets", *sets]
    assert run(tmp_path, *MINI, *options) == 0
    assert made(tmp_path) == {"train_clean_5", "dev", "test_clean", "test_clean_chapters"}
    assert validate_data_dir(tmp_path / "data" / "test_clean_chapters") == []
    utterances, chapters = table(tmp_path, "test_clean"), table(tmp_path, "test_clean_chapters")
    assert len(utterances) == 9 and len(chapters) == 3
    for name, text in chapters.items():
        texts = [utterances[key] for key in sorted(utterances) if key.startswith(f"{name}-")]
        assert text == " ".join(texts) and len(texts) == 3
    assert {*table(tmp_path, "test_clean_chapters", "utt2lang").values()} == {"en"}
    assert "test_clean_chapters: 3 chapters of test_clean" in capsys.readouterr().err
    assert run(tmp_path, *MINI, *options, "--test_utterances", "2") == 0
    assert validate_data_dir(tmp_path / "data" / "test_clean_chapters_part") == []
    part, keys = table(tmp_path, "test_clean_chapters_part"), sorted(chapters)
    assert part == {key: chapters[key] for key in keys[:2]}


@cases(
    (["--valid_speakers", "1", "99"], "speakers 99: not in train-clean-5; allowed: the 3"),
    (["--valid_speakers", "3", "2", "1"], "all 3 speakers of train-clean-5 are named; leave"),
    (["--valid_speakers", "1", "--subsets", "test-clean"], "no training set is chosen"),
    (["--valid_speakers", "1", "--max_valid_s", "0.1"], "dev: has no utterance of up to 0.1 s"),
    ([], "has neither dev-clean-2 nor LibriSpeech/dev-clean-2"),
)
def test_errors_are_one_line(options, message, train, tmp_path, capsys):
    options = [*MINI, "--librispeech", train, "--test_sets", "test_clean", *options]
    assert run(tmp_path, *options) == 1
    (line,) = errors(capsys)
    assert message in line
    assert not (tmp_path / "data" / "dev").exists()


def test_subsets_in_several_folders(tmp_path, capsys):
    train = make_librispeech(tmp_path, ("train-clean-5",), 2, 2, (0.2, 0.4))
    # A folder with the archive's name, into which it was unpacked.
    test = make_librispeech(tmp_path / "test-clean", ("test-clean",), 2, 2, (0.2, 0.4))
    options = [*MINI, "--valid_speakers", "1", "--test_sets", "test_clean", "--librispeech"]
    subsets = [train / "train-clean-5", test / "test-clean"]
    for folders in ([train, test], [tmp_path, test.parent], [test.parent, tmp_path], subsets):
        assert run(tmp_path, *options, *folders) == 0
        assert readers(table(tmp_path, "train_clean_5")) == {"2"}
        assert readers(table(tmp_path, "test_clean")) == {"101", "102"}
    # A missing test set is reported in one line; the others are prepared.
    capsys.readouterr()
    assert run(tmp_path, *options, train, tmp_path / "nowhere") == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"test-clean: {train}, {tmp_path / 'nowhere'}: has neither test-clean")


def test_missing_corpus_is_downloaded_checked_and_unpacked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(download, "RETRY_PAUSE_S", 0.0)
    source = tmp_path / "source"
    subsets = ("dev-clean", "dev-other")
    corpus = make_librispeech(source, subsets, 1, 2, (0.2, 0.3))
    pc = make_librispeech_pc(source / "pc", corpus)
    packed = miniature.publish(corpus, monkeypatch, *subsets)
    manifests = miniature.archive(source / "m.tar.gz", pc, *(f"{name}.json" for name in subsets))
    checksum = f"sha256:{hashlib.sha256(manifests.read_bytes()).hexdigest()}"
    fetch = functools.partial(librispeech_files.fetch_manifest, checksum=checksum)
    monkeypatch.setattr(prepare_librispeech, "fetch_manifest", fetch)
    downloads = tmp_path / "downloads"
    with serve() as server:
        server.files = packed | {"/145/manifests.tar.gz": manifests.read_bytes()}
        options = ["--download_dir", downloads, "--openslr", server.url, "--subsets", *subsets]
        server.files["/12/dev-other.tar.gz"] = b"?" + packed["/12/dev-other.tar.gz"]
        assert run(tmp_path, *options) == 1
        (line,) = errors(capsys)
        assert "dev-other.tar.gz: is damaged" in line and "expected" in line
        assert (downloads / "LibriSpeech" / "dev-clean").is_dir()
        server.files["/12/dev-other.tar.gz"] = packed["/12/dev-other.tar.gz"]
        server.requests.clear()
        assert run(tmp_path, *options) == 0
        wanted = ["/12/dev-other.tar.gz", "/145/manifests.tar.gz"]
        assert [path for path, _ in server.requests] == wanted, "dev-clean exists"
        for path in downloads.glob("*.tar.gz"):
            path.unlink()
        server.requests.clear()
        assert run(tmp_path, *options) == 0
        assert server.requests == [], "archives are not needed once they are unpacked"
    assert validate_data_dir(tmp_path / "data" / "dev") == []
    assert len(table(tmp_path, "dev")) == 4


def test_damaged_test_set_is_one_line_and_the_rest_is_prepared(tmp_path, capsys):
    corpus = make_librispeech(tmp_path / "downloads", ("dev-clean", "test-clean"), 1, 2, (0.2, 0.3))
    with serve() as server:
        server.files["/12/test-other.tar.gz"] = b"something else"
        options = ["--download_dir", corpus.parent, "--openslr", server.url]
        options += ["--librispeech_pc", "false", "--subsets"]
        assert run(tmp_path, *options, "test-other", "dev-clean", "test-clean") == 3
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("test-other: ") and "test-other.tar.gz: is damaged" in line
        assert made(tmp_path) == {"dev_clean", "test_clean"}
        # Without a training set the command fails, after it has fetched the others.
        server.files["/12/train-clean-100.tar.gz"] = b"something else"
        server.requests.clear()
        assert run(tmp_path, *options, "train-clean-100", "test-other") == 1
        wanted = ["/12/train-clean-100.tar.gz", "/12/test-other.tar.gz"]
        assert [path for path, _ in server.requests] == wanted
        (line,) = errors(capsys)
        assert "train-clean-100.tar.gz: is damaged" in line and "test-other.tar.gz: is" in line


def test_chapters_are_joined_in_order_and_unusable_ones_named(tmp_path, capsys):
    def join() -> None:
        join_chapters.main(["--data_dir", str(folder), "--output_dir", str(tmp_path / "chapters")])

    rng, samples, folder = np.random.default_rng(0), {}, tmp_path / "data"
    for key in ("7-20-0002", "7-20-0000", "7-31-0005", "7-20-0001"):
        samples[key] = rng.integers(-3000, 3000, rng.integers(300, 900)).astype(np.int16)
        soundfile.write(tmp_path / f"{key}.flac", samples[key], 16000)
    write_table(folder / "wav.scp", {key: str(tmp_path / f"{key}.flac") for key in samples})
    write_table(folder / "text", {key: f"WORDS OF {key}" for key in samples})
    write_table(folder / "utt2lang", {key: f"language-{key[2]}" for key in samples})
    join()
    assert "2 chapters" in capsys.readouterr().out
    assert validate_data_dir(tmp_path / "chapters") == []
    audio = read_table(tmp_path / "chapters" / "wav.scp")
    for chapter, numbers in {"7-20": (0, 1, 2), "7-31": (5,)}.items():
        keys = [f"{chapter}-{number:04d}" for number in numbers]
        joined, rate_hz = soundfile.read(audio[chapter], dtype="int16")
        assert rate_hz == 16000
        assert np.array_equal(joined, np.concatenate([samples[key] for key in keys]))
        text = read_table(tmp_path / "chapters" / "text")[chapter]
        assert text == " ".join(f"WORDS OF {key}" for key in keys)
    languages = read_table(tmp_path / "chapters" / "utt2lang")
    assert languages == {"7-20": "language-2", "7-31": "language-3"}

    soundfile.write(tmp_path / "7-20-0001.flac", samples["7-20-0001"], 8000)
    with command_refused(capsys, "7-20-0001.flac: 8000 Hz; allowed: 16000 Hz"):
        join()
    write_table(folder / "text", {"7-20-0000": "WORDS"})
    with command_refused(capsys, "text: 7-20-0001: missing"):
        join()
    write_table(folder / "wav.scp", {"talk": "talk.wav"})
    write_table(folder / "text", {"talk": "WORDS"})
    with command_refused(capsys, "talk; allowed: ids READER-CHAPTER-NUMBER"):
        join()
