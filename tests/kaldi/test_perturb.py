import pytest
import soundfile
from tones import edit, peak_frequency_hz, tone

from espnet_medusa import stages
from espnet_medusa.audio.reader import read_audio
from espnet_medusa.kaldi.data_dir import validate_data_dir
from espnet_medusa.kaldi.perturb import parse_factors
from espnet_medusa.kaldi.table import read_table, write_table


def run(folder, output, *more):
    stages.main(["perturb_speed", "--data_dir", str(folder), "--output_dir", str(output), *more])


def test_three_speeds_with_kaldis_names(make_data_dir, tmp_path):
    folder, output = make_data_dir(3, duration_s=1.0), tmp_path / "sp"
    run(folder, output, "--factors", "0.9 1.0 1.1", "--nj", "2")
    assert validate_data_dir(output) == []
    text, utt2spk, entries = (read_table(output / x) for x in ("text", "utt2spk", "wav.scp"))
    assert len(text) == 9
    assert text["sp0.9-s0-u002"] == text["s0-u002"] == "word 2"
    assert utt2spk["sp1.1-s1-u001"] == "sp1.1-s1"
    assert entries["s0-u000"] == read_table(folder / "wav.scp")["s0-u000"]
    for factor in (0.9, 1.1):
        samples, rate_hz = read_audio(entries[f"sp{factor}-s0-u000"])
        assert rate_hz == 16000
        assert abs(len(samples) - 16000 / factor) <= 1
        assert abs(peak_frequency_hz(samples, rate_hz) - 200 * factor) < 2


def test_copies_keep_the_language(make_data_dir, tmp_path):
    folder, output = make_data_dir(2), tmp_path / "sp"
    write_table(folder / "utt2lang", {"s0-u000": "en"})
    run(folder, output, "--factors", "0.9 1.0")
    assert read_table(output / "utt2lang") == {"s0-u000": "en", "sp0.9-s0-u000": "en"}


def test_segments_and_rate_are_kept(make_data_dir, tmp_path):
    folder, output = make_data_dir(1), tmp_path / "sp"
    soundfile.write(tmp_path / "rec.wav", tone(400, 2.0, 8000), 8000)
    write_table(folder / "wav.scp", {"rec": str(tmp_path / "rec.wav")})
    write_table(folder / "segments", {"s0-u000": "rec 0.5 1.5"})
    run(folder, output, "--factors", "0.8 1.0")
    assert not (output / "segments").exists()
    entries = read_table(output / "wav.scp")
    read = {key: read_audio(entry) for key, entry in entries.items()}
    lengths = {key: (len(audio), rate_hz) for key, (audio, rate_hz) in read.items()}
    assert lengths == {"s0-u000": (8000, 8000), "sp0.8-s0-u000": (10000, 8000)}


def test_bad_utterance_is_reported_once_and_nothing_is_written(make_data_dir, tmp_path, capsys):
    folder = make_data_dir(3)
    (folder / "audio" / "s0-u000.wav").write_bytes(b"")
    edit(folder / "text", lambda text: text.replace("s1-u001", "s1-u009"))
    with pytest.raises(SystemExit) as caught:
        run(folder, tmp_path / "sp")
    assert caught.value.code == 1
    ids = [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()]
    assert sorted(ids) == ["s0-u000", "s1-u001", "s1-u009"]
    assert not (tmp_path / "sp").exists()


def test_unchanged_output_is_kept(make_data_dir, tmp_path):
    folder, output = make_data_dir(2), tmp_path / "sp"
    run(folder, output, "--factors", "0.9 1.0")
    first = (output / ".stamp.json").stat().st_mtime_ns
    run(folder, output, "--factors", "0.9 1.0")
    assert (output / ".stamp.json").stat().st_mtime_ns == first
    run(folder, output, "--factors", "1.0 1.1")
    assert "sp1.1-s0-u000" in read_table(output / "wav.scp")


@pytest.mark.parametrize("text", ["", "fast", "0.9 0.9", "0", "-1", "nan", "16"])
def test_impossible_factors_are_refused(text):
    with pytest.raises(ValueError, match="factor"):
        parse_factors(text)
