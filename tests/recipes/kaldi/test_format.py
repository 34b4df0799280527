import shutil
import struct
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
from cases import cases
from espnet2.train.dataset import ESPnetDataset
from refusals import assert_refused, command_refused
from tones import RATE_HZ, edit, peak_frequency_hz, tone
from waiting import is_alive, wait_for

from espnet_medusa.bin import stage
from espnet_medusa.data.audio.reader import read_audio
from espnet_medusa.data.kaldi.data_dir import ValidationOptions, validate_data_dir
from espnet_medusa.data.kaldi.table import DataError, read_table, write_table
from espnet_medusa.recipes.kaldi.audio_writer import AUDIO_FORMATS, AudioOptions
from espnet_medusa.recipes.kaldi.fix import fix_data_dir
from espnet_medusa.recipes.kaldi.format import FormatOptions, format_data_dir


def options(on_bad: str = "stop", **audio) -> FormatOptions:
    return FormatOptions(audio=AudioOptions(**audio), on_bad=on_bad)


def run(folder, output, *more):
    stage.main(["format_data", "--data_dir", str(folder), "--output_dir", str(output), *more])


def break_twelve(folder) -> set[str]:
    """Break 12 of 60 utterances, each in its own way; returns their ids."""
    keys = list(read_table(folder / "wav.scp"))
    bad = keys[::5]
    audio = {key: folder / "audio" / f"{key}.wav" for key in keys}
    audio[bad[0]].write_bytes(np.random.default_rng(0).bytes(3000))  # Corrupt.
    audio[bad[1]].write_bytes(audio[bad[1]].read_bytes()[:3000])  # Truncated.
    audio[bad[2]].write_bytes(b"")  # An empty file.
    soundfile.write(audio[bad[3]], np.zeros(0), RATE_HZ)  # Zero length.
    soundfile.write(audio[bad[4]], np.full(4000, np.nan), RATE_HZ, subtype="FLOAT")
    soundfile.write(audio[bad[5]], np.zeros(1), RATE_HZ)  # One sample.
    soundfile.write(audio[bad[6]], np.zeros(31 * RATE_HZ), RATE_HZ)  # Beyond the window.
    n_bytes = 3600 * RATE_HZ * 2  # An hour, sparse on disk.
    with open(audio[bad[7]], "r+b") as stream:
        stream.seek(40)
        stream.write(struct.pack("<I", n_bytes))
        stream.truncate(44 + n_bytes)
    audio[bad[8]].unlink()  # Missing.
    pipe = f"{bad[9]} cat {audio[bad[9]]} |"
    edit(folder / "wav.scp", lambda text: text.replace(f"{bad[9]} {audio[bad[9]]}", pipe))
    texts = read_table(folder / "text")
    write_table(folder / "text", {key: texts[key] for key in keys if key != bad[10]})
    edit(folder / "wav.scp", lambda text: text + f"{bad[11]} {audio[bad[11]]}\n")  # Twice.
    assert len(bad) == 12
    return set(bad)


def test_columns_of_wav_scp_are_mixed_down(make_data_dir, tmp_path):
    folder = make_data_dir(3, "columns")
    entries = read_table(folder / "wav.scp")
    write_table(folder / "wav.scp", {key: f"{entry} {entry}" for key, entry in entries.items()})
    assert validate_data_dir(folder) == []
    assert format_data_dir(folder, tmp_path / "dump", options()).n_written == 3


def test_twelve_bad_of_sixty_are_listed_and_skipped_on_request(make_data_dir, tmp_path, capsys):
    folder, output = make_data_dir(60, "sixty"), tmp_path / "dump"
    bad, skip = break_twelve(folder), ["--on_bad", "skip", "--max_duration", "30"]
    assert_refused("1", run, folder, output, *skip[2:], error=SystemExit)
    printed = capsys.readouterr().out.splitlines()
    assert {line.split(": ")[1] for line in printed} == bad and len(printed) == 12
    assert [path.name for path in tmp_path.iterdir()] == ["sixty"]
    assert_refused("3", run, folder, output, *skip, "--nj", "2", error=SystemExit)
    printed = capsys.readouterr().out.splitlines()
    assert {line.split(": ")[1] for line in printed} == bad and len(printed) == 12
    assert set(read_table(output / "bad_utterances")) == bad
    good = set(read_table(folder / "utt2spk")) - bad
    assert len(good) == 48
    for name in ("wav.scp", "text", "utt2spk", "utt2num_samples"):
        assert set(read_table(output / name)) == good
    assert set(" ".join(read_table(output / "spk2utt").values()).split()) == good
    # Once more: nothing is redone, and the bad ones are named again.
    stamp = (output / ".stamp.json").stat().st_mtime_ns
    assert_refused("3", run, folder, output, *skip, "--nj", "1", error=SystemExit)
    assert (output / ".stamp.json").stat().st_mtime_ns == stamp
    assert capsys.readouterr().out.splitlines() == printed


def test_failed_commands_are_tried_again(folder, tmp_path):
    path = folder / "audio" / "s0-u000.wav"
    write_table(folder / "wav.scp", read_table(folder / "wav.scp") | {path.stem: f"cat {path} |"})
    path.rename(tmp_path / "away.wav")
    skip = options("skip", allow_pipes=True)
    assert format_data_dir(folder, tmp_path / "dump", skip).n_written == 3
    (tmp_path / "away.wav").rename(path)
    assert format_data_dir(folder, tmp_path / "dump", skip).n_written == 4


def test_killed_worker_is_an_error_not_a_hang(folder, tmp_path, capsys):
    write_table(folder / "wav.scp", dict.fromkeys(read_table(folder / "text"), "kill -9 $PPID |"))
    with command_refused(capsys, "a worker was killed"):
        run(folder, tmp_path / "dump", "--nj", "2", "--allow_pipes", "true")
    assert not (tmp_path / "dump").exists()


def test_killed_command_ends_its_workers(folder, tmp_path):
    output, entries = tmp_path / "dump", read_table(folder / "wav.scp")
    # Each command writes the id of its parent, a worker, and waits for the file `go`.
    names_worker = "echo $PPID > {0}.new; mv {0}.new {0}; until [ -e {1} ]; do sleep 0.1; done"
    slow = {
        key: f"{names_worker.format(tmp_path / key, tmp_path / 'go')}; cat {path} |"
        for key, path in entries.items()
    }
    write_table(folder / "wav.scp", slow)
    cmd = [
        sys.executable,
        "-m",
        "espnet_medusa.bin.stage",
        "format_data",
        "--data_dir",
        str(folder),
    ]
    cmd += ["--output_dir", str(output), "--nj", "2", "--allow_pipes", "true"]
    process = subprocess.Popen(cmd, stderr=subprocess.DEVNULL)
    first_of_each_worker = {"s0-u000", "s1-u001"}
    wait_for(lambda: all((tmp_path / key).exists() for key in first_of_each_worker))
    workers = [int((tmp_path / key).read_text()) for key in first_of_each_worker]
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_alive, workers)))
    (tmp_path / "go").touch()
    assert {path.name for path in tmp_path.glob("s?-*")} == first_of_each_worker
    assert not output.exists()
    write_table(folder / "wav.scp", entries)
    assert format_data_dir(folder, output, options()).n_written == 4
    assert not (tmp_path / ".dump.partial").exists()


def test_skip_with_no_good_utterance_fails(folder, tmp_path):
    shutil.rmtree(folder / "audio")
    with pytest.raises(DataError) as caught:
        format_data_dir(folder, tmp_path / "dump", options("skip"))
    assert len(caught.value.problems) == 4
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize("audio_format", AUDIO_FORMATS)
def test_espnet_reads_every_format(folder, tmp_path, audio_format):
    output = tmp_path / "dump"
    format_data_dir(folder, output, options(audio_format=audio_format, nj=2))
    kind = "kaldi_ark" if audio_format.endswith(".ark") else "sound"
    dataset = ESPnetDataset(
        [(str(output / "wav.scp"), "speech", kind), (str(output / "text"), "text", "text")],
        preprocess=lambda uid, data: {**data, "text": np.array([len(data["text"])])},
    )
    n_samples = read_table(output / "utt2num_samples")
    for i, key in enumerate(sorted(read_table(folder / "text"), key=lambda key: key[-3:])):
        speech = dataset[key][1]["speech"]
        assert len(speech) == int(n_samples[key]) == 3200
        np.testing.assert_allclose(speech, tone(200 + 10 * i, 0.2), atol=1e-3)
    assert (output / "audio_format").read_text() == f"{audio_format}\n"
    assert (output / "feats_type").read_text() == "raw\n"


def test_rate_and_channels_are_converted(folder, tmp_path):
    left, stereo = tone(440, 1.0, 44100), folder / "audio" / "s0-u000.wav"
    soundfile.write(stereo, np.stack([left, np.zeros_like(left)], axis=1), 44100)
    format_data_dir(folder, tmp_path / "dump", options(fs=8000))
    samples, rate_hz = read_audio(read_table(tmp_path / "dump" / "wav.scp")["s0-u000"])
    assert rate_hz == 8000 and len(samples) == 8000
    assert abs(peak_frequency_hz(samples, rate_hz) - 440) < 2
    assert abs(np.abs(samples[500:-500]).max() - 0.25) < 0.01


def test_file_of_the_right_format_is_not_copied(folder, tmp_path):
    wav = options(audio_format="wav")
    same = folder, folder, wav
    assert_refused("it would replace the input", format_data_dir, *same, error=ValueError)
    format_data_dir(folder, tmp_path / "dump", wav)
    assert read_table(tmp_path / "dump" / "wav.scp") == read_table(folder / "wav.scp")
    assert len(read_table(folder / "wav.scp")) == 4
    format_data_dir(folder, tmp_path / "other", options(audio_format="wav", fs=8000))
    entries = read_table(tmp_path / "other/wav.scp").values()
    assert all(str(tmp_path / "other") in entry for entry in entries)


@pytest.mark.parametrize("nj", [1, 2])
def test_clipped_utterances_are_named(folder, tmp_path, caplog, nj):
    loud = 2 * tone(440, 0.2)
    soundfile.write(folder / "audio" / "s0-u002.wav", 1.5 * loud, RATE_HZ, subtype="FLOAT")
    soundfile.write(folder / "audio" / "s0-u000.wav", loud, RATE_HZ, subtype="FLOAT")
    format_data_dir(folder, tmp_path / "dump", options(nj=nj))
    samples, _ = read_audio(read_table(tmp_path / "dump" / "wav.scp")["s0-u002"])
    np.testing.assert_allclose(samples, np.clip(1.5 * loud, -1, 1), atol=1e-4)
    (warning,) = caplog.messages
    assert "format data: samples beyond [-1, 1] were clipped: s0-u002 (peak 1.5); " in warning


@pytest.mark.parametrize("entry", ["{path}", "cat {path} |"])
def test_segments_are_cut_out(folder, tmp_path, entry):
    path = tmp_path / "recording.flac"
    soundfile.write(path, np.concatenate([tone(300 * n, 1.0) for n in (1, 2, 3, 4)]), RATE_HZ)
    keys = sorted(read_table(folder / "text"))
    write_table(folder / "wav.scp", {"rec": entry.format(path=path)})
    write_table(folder / "segments", {key: f"rec {i} {i + 0.5}" for i, key in enumerate(keys)})
    format_data_dir(folder, tmp_path / "dump", options(allow_pipes=True))
    assert not (tmp_path / "dump" / "segments").exists()
    entries = read_table(tmp_path / "dump" / "wav.scp")
    for i, key in enumerate(keys):
        samples, rate_hz = read_audio(entries[key])
        assert len(samples) == 8000
        assert abs(peak_frequency_hz(samples, rate_hz) - 300 * (i + 1)) < 3


def test_changes_and_damage_are_redone(folder, tmp_path):
    output = tmp_path / "dump"

    def is_redone(fs: int = 8000) -> bool:
        return not format_data_dir(folder, output, options(fs=fs)).was_complete

    assert is_redone(fs=16000) and not is_redone(fs=16000) and is_redone()
    edit(folder / "text", lambda text: text.replace("word 0", "other"))
    assert is_redone() and "other" in (output / "text").read_text()
    soundfile.write(next((folder / "audio").iterdir()), tone(500, 0.3), RATE_HZ)
    assert is_redone()
    ark = next(output.rglob("*.ark"))
    ark.write_bytes(ark.read_bytes()[:-1])
    assert is_redone() and not is_redone()
    for code in ("de", "nl"):
        languages = dict.fromkeys(read_table(folder / "utt2spk"), code)
        write_table(folder / "utt2lang", languages)
        assert is_redone() and read_table(output / "utt2lang") == languages
    edit(folder / "utt2lang", lambda text: text.replace("s0-u000 nl", "s0-u000"))
    assert_refused("utt2lang: s0-u000: has no value", is_redone, error=DataError)


def test_interrupted_run_leaves_the_old_output(folder, tmp_path, monkeypatch):
    output = tmp_path / "dump"
    format_data_dir(folder, output, options())
    before = (output / "wav.scp").read_bytes()
    save_ark = "espnet_medusa.recipes.kaldi.audio_writer.kaldiio.save_ark"
    monkeypatch.setattr(save_ark, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        format_data_dir(folder, output, options(fs=8000))
    assert (output / "wav.scp").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "dump"]


def test_empty_and_missing_text_need_options_and_utt2spk_is_optional(folder, tmp_path):
    edit(folder / "text", lambda text: text.replace("word 0", ""))
    given = folder, tmp_path / "dump"
    assert_refused("s0-u000: has no value", format_data_dir, *given, options(), error=DataError)
    assert format_data_dir(*given, FormatOptions(allow_empty_text=True)).n_written == 4
    (folder / "utt2spk").unlink()
    (folder / "text").unlink()
    assert_refused("text: cannot be read", format_data_dir, *given, options(), error=DataError)
    format_data_dir(*given, FormatOptions(require_text=False))
    keys = read_table(folder / "wav.scp")
    assert read_table(tmp_path / "dump/utt2spk") == {key: key for key in keys}
    assert not (tmp_path / "dump" / "text").exists()


def test_undecodable_and_ambiguous_lines_are_not_lost(folder, tmp_path):
    path = folder / "text"
    path.write_bytes(path.read_bytes().replace(b"word 0", b"caf\xe9"))
    (problem,) = validate_data_dir(folder)
    assert problem.id == "s0-u000" and "UTF-8" in problem.message
    path.write_bytes(path.read_bytes() + b"\xe9 x\n")
    edit(folder / "utt2spk", lambda text: text.replace("s1-u001 s1", "s1-u001 s1 b"))
    assert format_data_dir(folder, tmp_path / "dump", options("skip")).n_written == 2
    bad = read_table(tmp_path / "dump" / "bad_utterances")
    assert set(bad) == {"s0-u000", "s1-u001", "line_5"}
    assert bad["s1-u001"].startswith("utt2spk: has a speaker of more than one word: s1 b; ")


def test_ids_with_a_slash(make_data_dir, tmp_path):
    folder = make_data_dir(1)
    for name in ("wav.scp", "text", "utt2spk"):
        edit(folder / name, lambda text: text.replace("s0-u000 ", "s0/u000 "))
    format_data_dir(folder, tmp_path / "dump", options(audio_format="flac"))
    assert len(read_audio(read_table(tmp_path / "dump" / "wav.scp")["s0/u000"])[0]) == 3200


@cases(
    (["--nj", "0"], "nj must be at least 1"),
    (["--fs", "16"], "fs must be a rate in Hz"),
    (["--max_duration", "0"], "0 <= min_duration < max_duration"),
    (["--max_duration", "nan"], "min_duration < max_duration, not 0.01 and nan s"),
    (["--max_duration", "inf"], "min_duration < max_duration, not 0.01 and inf s"),
)
def test_impossible_options_are_refused(cmd, message, folder, tmp_path, capsys):
    with command_refused(capsys, message):
        run(folder, tmp_path / "dump", *cmd)


def test_transcripts_have_single_blanks(folder, tmp_path):
    edit(folder / "text", lambda text: text.replace("word 0", "a\t b\N{NO-BREAK SPACE}\u3000c"))
    format_data_dir(folder, tmp_path / "dump", options())
    assert read_table(tmp_path / "dump" / "text")["s0-u000"] == "a b c"


def ambiguous(folder):
    """Give ids of ``folder`` the labels (s0-s0-u000), (s(1)-...) and twice (s0-x-y)."""
    names = {"s0-u002": "x-y", "s1-u001": "y", "s1-u003": "s1-u(3)"}
    for name in ("wav.scp", "text", "utt2spk"):
        table = read_table(folder / name)
        table = {names.get(key, key): value for key, value in table.items()}
        if name == "utt2spk":
            table["y"] = "s0-x"
        write_table(folder / name, table)


def test_ids_that_cannot_be_scored_are_found_in_the_data(folder, tmp_path):
    ambiguous(folder)
    checked = ValidationOptions(speaker_order=False)
    found = {
        one.id: one.message for one in validate_data_dir(folder, checked) if "label" in one.message
    }
    expected = {
        "s1-u(3)": "its label in scoring, 's1-s1-u(3)', has '('",
        "y": "its label in scoring, 's0-x-y', is also that of x-y",
    }
    assert found == expected
    report = format_data_dir(folder, tmp_path / "dump", options("skip"))
    assert {one.id: one.message for one in report.bad} == expected
    assert read_table(tmp_path / "dump" / "text").keys() == {"s0-u000", "x-y"}
    # Those of a training set are not scored.
    training = FormatOptions(scored=False)
    assert format_data_dir(folder, tmp_path / "dump", training).n_written == 4
    unscored = ValidationOptions(speaker_order=False, scored=False)
    assert not any("label" in one.message for one in validate_data_dir(folder, unscored))


def test_empty_transcripts_of_test_sets_stay(folder, tmp_path):
    edit(folder / "text", lambda text: text.replace("word 0", "\N{NO-BREAK SPACE}"))
    assert validate_data_dir(folder, ValidationOptions(allow_empty_text=True)) == []
    assert fix_data_dir(folder, allow_empty_text=True).dropped == []
    report = format_data_dir(folder, tmp_path / "dump", FormatOptions(allow_empty_text=True))
    assert (report.n_written, report.bad) == (4, [])
    assert read_table(tmp_path / "dump" / "text", require_value=False)["s0-u000"] == ""
