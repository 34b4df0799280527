import pytest
import soundfile
from refusals import command_refused
from tones import RATE_HZ, edit, tone

from espnet_medusa import stages
from espnet_medusa.kaldi.audio_writer import AudioOptions
from espnet_medusa.kaldi.dump_dir import read_dump_dir
from espnet_medusa.kaldi.format import FormatOptions, format_data_dir
from espnet_medusa.kaldi.table import DataError, read_table, write_table


@pytest.fixture
def formatted(make_data_dir, tmp_path):
    folder = make_data_dir(10)
    for key, duration_s in (("s0-u000", 0.05), ("s1-u001", 0.1), ("s0-u002", 3.0)):
        soundfile.write(folder / "audio" / f"{key}.wav", tone(300, duration_s), RATE_HZ)
    edit(folder / "text", lambda text: text.replace("word 4", ""))
    output = tmp_path / "org"
    format_data_dir(folder, output, FormatOptions(audio=AudioOptions(nj=1), allow_empty_text=True))
    return output


def run(formatted, output, *more):
    stages.main(["filter_data", "--input_dir", str(formatted), "--output_dir", str(output), *more])


def test_long_short_and_empty_utterances_are_dropped(formatted, tmp_path, capsys):
    output = tmp_path / "train"
    run(formatted, output, "--min_wav_duration", "0.1", "--max_wav_duration", "3", "--fs", "16k")
    printed = capsys.readouterr().out
    assert "kept 6 utterances, dropped 4" in printed
    assert "too short: 2 (s0-u000, s1-u001)" in printed  # ESPnet keeps more than 0.1 s
    assert "too long: 1 (s0-u002)" in printed and "empty text: 1 (s0-u004)" in printed
    dropped = {"s0-u000", "s1-u001", "s0-u002", "s0-u004"}
    assert set(read_table(output / "dropped_utterances")) == dropped
    everyone = read_table(formatted / "wav.scp")
    for name in ("wav.scp", "text", "utt2spk", "utt2num_samples"):
        assert set(read_table(output / name)) == set(everyone) - dropped
    assert read_table(output / "spk2utt")["s0"] == "s0-u006 s0-u008"
    for name in ("audio_format", "feats_type"):
        assert (output / name).read_bytes() == (formatted / name).read_bytes()


def test_languages_and_regulations_come_from_the_data_directory(make_data_dir, tmp_path):
    folder = make_data_dir(4)
    keys = list(read_table(folder / "wav.scp"))
    (folder / "audio" / f"{keys[0]}.wav").write_bytes(b"")
    soundfile.write(folder / "audio" / f"{keys[1]}.wav", tone(300, 0.05), RATE_HZ)
    write_table(folder / "utt2lang", dict.fromkeys(keys, "de"))
    write_table(folder / "utt2regulation", {keys[1]: "140 1.01", keys[2]: "190 1.02"})
    options = FormatOptions(audio=AudioOptions(nj=1), on_bad="skip")
    format_data_dir(folder, tmp_path / "org", options)
    assert set(read_table(tmp_path / "org" / "utt2lang")) == set(keys[1:])
    run(tmp_path / "org", tmp_path / "train")
    assert read_table(tmp_path / "train" / "utt2lang") == dict.fromkeys(keys[2:], "de")
    assert read_table(tmp_path / "train" / "utt2regulation") == {keys[2]: "190 1.02"}


def test_another_language_formats_the_set_again(make_data_dir, tmp_path):
    folder, options = make_data_dir(2), FormatOptions(audio=AudioOptions(nj=1))
    keys = list(read_table(folder / "wav.scp"))
    for code in ("de", "nl"):
        write_table(folder / "utt2lang", dict.fromkeys(keys, code))
        assert not format_data_dir(folder, tmp_path / "org", options).was_complete
        assert read_table(tmp_path / "org" / "utt2lang") == dict.fromkeys(keys, code)
    edit(folder / "utt2lang", lambda text: text.replace(f"{keys[0]} nl", keys[0]))
    with pytest.raises(DataError, match=rf"utt2lang: {keys[0]}: has no value"):
        format_data_dir(folder, tmp_path / "org", options)


def test_empty_text_may_stay(formatted, tmp_path):
    run(formatted, tmp_path / "train", "--drop_empty_text", "false")
    assert "s0-u004" in read_table(tmp_path / "train" / "wav.scp")


def test_nothing_left_is_an_error(formatted, tmp_path, capsys):
    with command_refused(capsys, "none of its 10 utterances is left"):
        run(formatted, tmp_path / "train", "--min_wav_duration", "10")
    assert not (tmp_path / "train").exists()


def test_tables_that_disagree_are_an_error(formatted, tmp_path, capsys):
    edit(formatted / "utt2num_samples", lambda text: "".join(text.splitlines(True)[1:]))
    with command_refused(capsys, "utt2num_samples: s0-u000: is missing"):
        run(formatted, tmp_path / "train")


@pytest.mark.parametrize("count", ["\u00b2", "9" * 5000, "-1", "1.5"])
def test_bad_numbers_of_samples_are_refused(formatted, count):
    table = read_table(formatted / "utt2num_samples") | {"s0-u000": count}
    write_table(formatted / "utt2num_samples", table)
    with pytest.raises(DataError, match=f"s0-u000: {count} is no number"):
        read_dump_dir(formatted)
