"""The digit recipe: clips, their split, joined strings, and results of small models."""

import io
import itertools
import json
from pathlib import Path

import make_digit_strings
import numpy as np
import pytest
import soundfile
import yaml
from cases import cases
from downloads import link, make_tar, tree
from fsdd_clips import SAMPLE_RATE_HZ, Clip, read_clips
from make_digit_strings import DIGIT_WORDS, join_clips, split_clips
from recipes import ROOT, copy_config, link_recipe
from recipes import run as run_recipe
from refusals import command_refused, refused

from espnet_medusa.data.kaldi.data_dir import validate_data_dir
from espnet_medusa.data.kaldi.table import read_table

SPEAKERS = ("ann", "theo")
INDICES = (0, 4, 5, 9, 10, 11)


def clip_level(speaker: str, digit: int, index: int) -> float:
    """Return the level of a toy clip, which identifies it."""
    return (1 + digit + 10 * INDICES.index(index) + 60 * SPEAKERS.index(speaker)) / 128


def wav_bytes(level: float, rate: int = SAMPLE_RATE_HZ, n_channels: int = 1) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, np.full((800, n_channels), level), rate, format="WAV", subtype="PCM_16")
    return stream.getvalue()


def speaker_files(speaker: str) -> dict[str, bytes]:
    clips = itertools.product(range(10), INDICES)
    return {f"{d}_{speaker}_{i}.wav": wav_bytes(clip_level(speaker, d, i)) for d, i in clips}


@pytest.fixture
def toy_dir(tmp_path):
    """One speaker as an archive, one as files in a subfolder."""
    folder = tmp_path / "fsdd"
    (folder / "recordings").mkdir(parents=True)
    make_tar(folder / "ann.tar.gz", speaker_files("ann"))
    for name, content in speaker_files("theo").items():
        (folder / "recordings" / name).write_bytes(content)
    return folder


def run(directory: Path, monkeypatch, fsdd_dir: Path, *options: str) -> None:
    monkeypatch.chdir(directory)
    small = ["--minutes", "0.5", "--dev_utterances", "8", "--test_utterances", "8"]
    make_digit_strings.main(["--fsdd_dir", str(fsdd_dir), *small, *options])


def test_clips_come_from_files_and_archives_alike(toy_dir):
    clips = read_clips(toy_dir)
    expected = [*itertools.product(SPEAKERS, range(10), INDICES)]
    assert [(c.speaker, c.digit, c.index) for c in clips] == expected
    for clip in clips:
        level = clip_level(clip.speaker, clip.digit, clip.index)
        np.testing.assert_allclose(clip.samples, level, atol=1e-4)
    assert {c.speaker for c in read_clips(toy_dir, ("theo",))} == {"theo"}
    # A file has priority over an archive.
    (toy_dir / "0_ann_0.wav").write_bytes(wav_bytes(0.99))
    assert read_clips(toy_dir)[0].samples[0] == pytest.approx(0.99, abs=1e-3)


def test_archives_write_nothing_and_their_links_are_not_followed(toy_dir, tmp_path):
    members = {"../0_eve_0.wav": wav_bytes(0.5), "/0_eve_1.wav": wav_bytes(0.5)}
    target = str(toy_dir / "recordings" / "0_theo_0.wav")
    make_tar(toy_dir / "eve.tar.gz", members | {"0_eve_2.wav": link("0_eve_2.wav", target)})
    before = sorted(tmp_path.rglob("*"))
    assert [clip.index for clip in read_clips(toy_dir, ("eve",))] == [0, 1]
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/0_eve_1.wav").exists()


@cases(
    ("0_eve_0.wav", b"not audio", "not an audio file"),
    ("0_eve_0.wav", b"", "not an audio file"),
    ("0_eve_0.wav", wav_bytes(0.5, rate=16000), "at 16000 Hz"),
    ("0_eve_0.wav", wav_bytes(0.5, n_channels=2), "shape (800, 2)"),
    ("0_eve_0.wav", bytes(1_000_001), "1000001 bytes"),
    ("eve.tar.gz", b"not an archive", "not a whole gzipped tar archive"),
)
def test_broken_file_is_refused_by_name(name, content, message, toy_dir):
    (toy_dir / name).write_bytes(content)
    with refused(f"{name}: ", message):
        read_clips(toy_dir)


def test_broken_archive_is_refused_by_name(toy_dir):
    archive = toy_dir / "ann.tar.gz"
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with refused("ann.tar.gz: not a whole gzipped tar archive"):
        read_clips(toy_dir)
    make_tar(archive, {"0_ann_0.wav": bytes(1_000_001)})
    with refused("ann.tar.gz: 0_ann_0.wav: 1000001 bytes"):
        read_clips(toy_dir)


def test_missing_folders_clips_speakers_and_digits_are_named(toy_dir, tmp_path):
    (tmp_path / "empty").mkdir()
    with refused("nowhere: no such folder; --fsdd_dir"):
        read_clips(tmp_path / "nowhere")
    with refused("of any speaker; there are clips of: nobody"):
        read_clips(tmp_path / "empty")
    with refused("of eve; there are clips of: ann"):
        read_clips(toy_dir, ("ann", "eve"))
    for index in (5, 9):
        (toy_dir / "recordings" / f"7_theo_{index}.wav").unlink()
    with refused("speaker theo: no clips of [7] for the dev set"):
        split_clips(read_clips(toy_dir))


def test_joined_clips_keep_their_places():
    samples = join_clips([Clip(1, "ann", 0, np.full(400, 0.5, np.float32))] * 2, [0.1, 0.05, 0.2])
    assert len(samples) == 800 + 400 + 400 + 400 + 1600
    for start, end, level in [(0, 800, 0), (900, 1100, 0.5), (1200, 1600, 0), (2000, 3600, 0)]:
        np.testing.assert_array_equal(samples[start:end], level)
    # No click: the edge rises in steps smaller than half of the level.
    assert np.abs(np.diff(samples)).max() < 0.25


def test_strings_are_made_of_the_right_clips(toy_dir, tmp_path, monkeypatch):
    run(tmp_path, monkeypatch, toy_dir)
    ids: set[str] = set()
    for name, indices in {"test": (0, 4), "dev": (5, 9), "train": (10, 11)}.items():
        directory = tmp_path / "data" / name
        assert validate_data_dir(directory) == []
        texts, paths = read_table(directory / "text"), read_table(directory / "wav.scp")
        assert not ids & set(texts)
        ids |= set(texts)
        total_s = 0.0
        for key, text in texts.items():
            samples, rate = soundfile.read(paths[key])
            assert rate == SAMPLE_RATE_HZ
            total_s += len(samples) / rate
            speaker = key.split("-")[0]
            if speaker == "theo":
                assert paths[key].endswith(".flac")
                np.testing.assert_allclose(samples[:, 1], 0.5 * samples[:, 0], atol=1e-4)
                samples = samples[:, 0]
            assert samples.ndim == 1
            digits = [DIGIT_WORDS.index(word) for word in text.split()]
            assert 3 <= len(digits) <= 8
            check_levels(samples, speaker, digits, indices)
        if name == "train":
            assert 30 <= total_s < 34
        else:
            assert len(texts) == 8


def check_levels(samples: np.ndarray, speaker: str, digits: list[int], indices) -> None:
    """Compare the levels of the toy clips in a string with those that its text allows."""
    edges = np.flatnonzero(np.diff((samples != 0).astype(int)))
    starts, ends = edges[::2], edges[1::2]
    assert len(starts) == len(ends) == len(digits)
    pauses_s = np.diff(np.concatenate([[0], edges, [len(samples)]]))[::2] / SAMPLE_RATE_HZ
    assert pauses_s.min() > 0.045 and pauses_s.max() < 0.255
    for digit, start, end in zip(digits, starts, ends, strict=True):
        allowed = [clip_level(speaker, digit, index) for index in indices]
        assert np.abs(np.array(allowed) - samples[(start + end) // 2]).min() < 1e-3


def test_strings_depend_only_on_the_seed(toy_dir, tmp_path, monkeypatch):
    for name, seed in (("first", "0"), ("again", "0"), ("other", "1")):
        (tmp_path / name).mkdir()
        run(tmp_path / name, monkeypatch, toy_dir, "--seed", seed)
    first, text = tree(tmp_path / "first"), "data/test/text"
    assert first == tree(tmp_path / "again")
    assert first[text] != tree(tmp_path / "other")[text]
    # A second run over the first leaves no files of the other seed.
    run(tmp_path / "other", monkeypatch, toy_dir, "--seed", "0")
    assert first == tree(tmp_path / "other")


@cases(
    (["--minutes", "0"], "--minutes 0.0: must be above 0"),
    (["--min_digits", "9"], "--min_digits 9: must not be above --max_digits 8"),
    (["--min_pause_ms", "-1"], "--min_pause_ms -1.0: must not be negative"),
    (["--speakers", "eve"], "of eve; there are clips of:"),
)
def test_bad_option_ends_with_one_line(options, message, toy_dir, tmp_path, monkeypatch, capsys):
    with command_refused(capsys, message):
        run(tmp_path, monkeypatch, toy_dir, *options)


TINY = {"num_blocks": 1, "attention_heads": 2, "linear_units": 48}


def test_recipe_makes_its_data(toy_dir, tmp_path):
    recipe, options = link_recipe(tmp_path, "fsdd/asr1"), ["--nj", "1", "--stop_stage", "5"]
    sizes = "--minutes 0.5 --dev_utterances 6 --test_utterances 8"
    run_recipe(
        recipe, "./run.sh", "--fsdd_dir", toy_dir, "--local_data_opts",
        f"--fsdd_dir {toy_dir} {sizes}", *options, status=0,
    )  # fmt: skip
    texts = {path.parent.name: read_table(path) for path in recipe.glob("dump/raw/*/text")}
    assert (len(texts["dev"]), len(texts["test"])) == (6, 8) and texts["train"]
    (tokens,) = recipe.glob("data/en_token_list/char/tokens.txt")
    assert {"<space>", *"onetwhr"} < {*tokens.read_text().split()}


@pytest.mark.full_length
def test_recipe_from_clips_to_results(toy_dir, tmp_path):
    """The path of medusa.sh, which the tests of Speech-LLaMAs take, too."""
    recipe = link_recipe(tmp_path, "fsdd/asr1", without=("conf",))
    (recipe / "conf" / "decode").rmdir()
    (recipe / "conf" / "decode").symlink_to(ROOT / "conf" / "decode")
    for name in ("train_base", "train_block"):
        copy_config(
            ROOT / "egs" / "fsdd" / "asr1" / "conf" / f"{name}.yaml", recipe / "conf",
            encoder_conf={"output_size": 32, **TINY}, decoder_conf=TINY, max_epoch=1,
            use_matplotlib=False,
        )  # fmt: skip
    # The model is almost untrained: a minimum length makes it write something.
    run_recipe(
        recipe, "./run.sh", "--heads", "block_3heads", "--decodings", "exact",
        "--local_data_opts", f"--fsdd_dir {toy_dir} --minutes 1 --dev_utterances 6 "
        "--test_utterances 8", "--report", ROOT / "conf" / "report" / "mini_synth.yaml",
        "--nj", "1", "--train_nj", "1", "--inference_nj", "1",
        "--inference_args", "--minlenratio -6 --maxlenratio -20",
        status=0,
    )  # fmt: skip
    results = (recipe / "exp" / "RESULTS.md").read_text()
    assert "block_3heads exact" in results and "8/8" in results, "all texts are the baseline's"
    assert json.loads((recipe / "exp" / "decoding.json").read_text())
    trained = yaml.safe_load((recipe / "exp" / "asr_block_3heads" / "config.yaml").read_text())
    assert trained["decoder_conf"]["heads_conf"]["num_heads"] == 3
    report = (recipe / "exp" / "REPORT.md").read_text()
    assert "- Not run: test.\n" in report and "|test|5 heads|" not in report, "another model"
    texts = [path.read_text() for path in sorted(recipe.glob("exp/asr_*/*/test/text"))]
    assert len(texts) == 2 and texts[0] == texts[1] and texts[0].count("\n") == 8
    for image in ("acceptance_test", "speedup_test", "tokens_per_call_test"):
        assert (recipe / "exp" / "images" / f"{image}.png").stat().st_size > 1000
