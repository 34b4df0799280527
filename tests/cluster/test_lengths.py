"""Lengths of utterances: from the recipe's table, else from headers; none where nothing tells."""

from experiment import write_noise

from espnet_medusa.cluster.lengths import UNKNOWN_FRAMES, read_lengths


def test_lengths_come_from_the_table_or_the_header(tmp_path):
    write_noise(tmp_path / "half.wav", 0.5)
    write_noise(tmp_path / "other_rate.flac", 2.0, rate_hz=44100)
    (tmp_path / "broken.wav").write_bytes(b"RIFF and no more")
    ran = tmp_path / "ran"
    entries = {
        "half": str(tmp_path / "half.wav"),
        "other_rate": str(tmp_path / "other_rate.flac"),
        "told": str(tmp_path / "half.wav"),
        "told_wrongly": str(tmp_path / "half.wav"),
        "broken": str(tmp_path / "broken.wav"),
        "missing": str(tmp_path / "missing.wav"),
        "command": f"touch {ran}; cat {tmp_path / 'half.wav'} |",
    }
    (tmp_path / "utt2num_samples").write_text("told 320000\ntold_wrongly many\nanother 1\n")
    unknown = dict.fromkeys(("broken", "missing", "command"), UNKNOWN_FRAMES)
    known = {"half": 50, "other_rate": 200, "told": 2000, "told_wrongly": 50}
    assert read_lengths(entries, entries, tmp_path / "wav.scp") == known | unknown
    assert not ran.exists(), "a command runs once, where its audio is decoded"


def test_no_utterances_have_no_lengths(tmp_path):
    assert read_lengths([], {"a": "a.wav"}, tmp_path / "wav.scp") == {}
