"""Speech in hard conditions, and the table of programs at their defaults."""

import argparse
import json
from dataclasses import asdict
from unittest.mock import Mock

import compare_conditions
import conditions
import numpy as np
import pytest
import soundfile
from compare_conditions import MINE, THEIRS, THEIRS_VAD, condition_row, read_conditions
from contestants.base import Result, Timed
from contestants.ways import GREEDY, INT8, OURS, Way
from experiment import write_noise
from inputs import Utterance
from refusals import assert_refused
from runner import Measurement

from espnet_medusa.data.kaldi.table import read_table

RATE_HZ = 16000
LEVELS = (0, 5, 10, 20)


@pytest.fixture
def made(tmp_path):
    for name in ("test_clean", "train_clean"):
        folder = tmp_path / name / "1" / "2"
        folder.mkdir(parents=True)
        lines = [f"1-2-{number:04d} WORDS OF {number}\n" for number in range(8)]
        (folder / "1-2.trans.txt").write_text("".join(lines))
        for number in range(8):
            write_noise(folder / f"1-2-{number:04d}.flac", 1.0, number)
    accented = tmp_path / "train"
    accented.mkdir()
    for number in range(6):
        write_noise(tmp_path / f"{number}.wav", 1.0, number)
    (accented / "text").write_text("".join(f"u{number} SPOKEN\n" for number in range(6)))
    (accented / "wav.scp").write_text("".join(f"u{n} {n}.wav\n" for n in range(6)))
    (tmp_path / "digits").mkdir()
    for number in range(4):
        write_noise(tmp_path / "digits" / f"{number}_a_0.wav", 2.0, number, 8000)
    args = argparse.Namespace(
        output=tmp_path / "made", test_clean=tmp_path / "test_clean",
        train_clean=tmp_path / "train_clean", accented=accented, digits=tmp_path / "digits",
        num_utterances=2, num_silent=3, seed=0,
    )  # fmt: skip
    conditions.make_conditions(args)
    return args


def test_every_condition_is_a_data_directory_of_clips(made):
    names = {path.name for path in made.output.iterdir()}
    assert names == {
        "clean", "accented", "digits", "telephone", "far", "pause_5s", "pause_20s",
        *(f"{noise}_{snr_db}db" for noise in ("babble", "pink") for snr_db in LEVELS),
        *(f"no_speech_{sound}" for sound in conditions.SOUNDS),
    }  # fmt: skip
    counts = {"clean": 6, "accented": 4, "pause_5s": 1, "pause_20s": 1}
    for name in names:
        entries, texts = (read_table(made.output / name / file) for file in ("wav.scp", "text"))
        expected = counts.get(name, 3 if name.startswith("no_speech_") else 2)
        assert entries.keys() == texts.keys() and len(entries) == expected
        for entry in entries.values():
            info = soundfile.info(entry)
            assert info.samplerate == (8000 if name in ("telephone", "digits") else RATE_HZ)
            seconds = {"pause_5s": 7, "pause_20s": 22}.get(name, 1)
            if not name.startswith("no_speech_") and name != "digits":
                assert info.duration == pytest.approx(seconds, abs=0.01)
    assert {soundfile.info(p).subtype for p in made.output.glob("telephone/*.wav")} == {"ULAW"}
    written = {path: path.read_bytes() for path in made.output.rglob("*.*")}
    conditions.make_conditions(made)
    assert {path: path.read_bytes() for path in written} == written
    # Clips have 16 kHz.
    clips = read_conditions(made.output, ["telephone", "no_speech_hum"], 1)
    assert [*clips] == ["no_speech_hum", "telephone"] and len(clips["no_speech_hum"]) == 1
    (clip,) = clips["telephone"]
    assert clip.id.startswith("telephone__1-2-") and clip.seconds == pytest.approx(1, abs=0.01)
    assert_refused("no condition rain", read_conditions, made.output, ["rain"], None)
    made.num_utterances = 3
    assert_refused("8 utterances; at least 9 are needed", conditions.make_conditions, made)


@pytest.mark.parametrize("snr_db", LEVELS)
def test_noise_has_the_signal_to_noise_ratio(snr_db):
    rng = np.random.default_rng(0)
    clean = 0.1 * rng.standard_normal(RATE_HZ)
    for noise in (conditions.pink_noise(RATE_HZ, rng), conditions.white_noise(RATE_HZ, rng)):
        difference = conditions.add_noise(clean, noise, snr_db) - clean
        ratio = 20 * np.log10(conditions.rms(clean) / conditions.rms(difference))
        assert ratio == pytest.approx(snr_db, abs=1e-6)
    assert np.abs(conditions.add_noise(8 * clean, noise, snr_db)).max() <= 1


def test_rows_of_the_table():
    clips = [Utterance(f"clean__{n}", np.zeros(1), 30.0, "the cat sat") for n in range(2)]
    loop = "no, " * 100
    timed = {}
    for way, seconds, *texts in (
        (THEIRS, 1.0, "The cat sat.", loop),
        (THEIRS_VAD, 0.5, "", "you"),
        (MINE, 0.25, "The cat sat.", "The dog."),
    ):
        rows = [Timed([Result(text)], 0.0, seconds) for text in texts]
        timed[way] = {clip.id: row for clip, row in zip(clips, rows, strict=True)}
    row = condition_row("clean", clips, timed)
    assert (row["group"], row["condition"], row["clips"]) == ("speech", "clean", 2)
    wer = [row[f"{program}_wer"]["value"] for program in ("faster_whisper", "ours")]
    assert wer == pytest.approx([100 * 100 / 6, 100 * 2 / 6], abs=0.01)
    assert (row["faster_whisper_inserted"], row["ours_inserted"]) == (97, 0)
    assert (row["faster_whisper_looped"], row["ours_looped"]) == (1, 0)
    assert (row["faster_whisper_ms"], row["ours_ms"]) == (1000, 250)
    assert row["speedup"]["value"] == 4 and "faster_whisper_vad_ms" not in row
    row = condition_row("no_speech_hum", clips, timed)
    assert (row["group"], row["condition"]) == ("no speech", "hum")
    names = "faster_whisper", "faster_whisper_vad", "ours"
    assert [row[f"{name}_words_per_minute"] for name in names] == [103, 1, 5]
    assert "ours_wer" not in row and "speedup" not in row


def test_a_complete_journal_needs_no_program(made, tmp_path, in_folder, monkeypatch):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.yaml").write_text("token_type: whisper_en\n")
    same_words = {"return_value.decode.return_value": Timed([Result("words of one")], 0.5, 0.5)}
    monkeypatch.setattr(compare_conditions, "Client", Mock(**same_words))
    written = argparse.Namespace(folder=tmp_path)
    monkeypatch.setattr(compare_conditions, "speech_subject", lambda *given, **more: written)
    names = ["clean", "no_speech_hum"]
    command = ["--conditions", str(made.output), "--whisper", str(tmp_path / "base")]
    command += ["--names", *names, "--output", str(tmp_path / "report.md")]
    compare_conditions.main(command)
    page = (tmp_path / "report.md").read_text()
    assert "## speech\n" in page and "## no speech\n" in page and "|clean|6|" in page
    report = json.loads((tmp_path / "report.json").read_text())
    assert [row["condition"] for row in report["rows"]] == ["clean", "hum"]

    monkeypatch.delattr(compare_conditions, "speech_subject")
    other = Measurement(Way(OURS, INT8, GREEDY), ("x",), 0, Timed([Result("")], 0.0, 1.0))
    with (tmp_path / "report.jsonl").open("a") as stream:
        stream.write(json.dumps(asdict(other)) + "\n")
    compare_conditions.main(command)
    assert (tmp_path / "report.md").read_text() == page
    assert json.loads((tmp_path / "report.json").read_text()) == report
