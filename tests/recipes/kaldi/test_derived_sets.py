"""Data directories made from others: joined, filtered, at other speeds."""

import pytest
import soundfile
from downloads import tree
from refusals import assert_refused, command_refused
from tones import RATE_HZ, edit, peak_frequency_hz, tone

from espnet_medusa.bin import stage
from espnet_medusa.data.audio.reader import read_audio
from espnet_medusa.data.kaldi.data_dir import validate_data_dir
from espnet_medusa.data.kaldi.dump_dir import read_dump_dir
from espnet_medusa.data.kaldi.table import DataError, read_table, write_table
from espnet_medusa.recipes.kaldi.audio_writer import AudioOptions
from espnet_medusa.recipes.kaldi.format import FormatOptions, format_data_dir
from espnet_medusa.recipes.kaldi.perturb import parse_factors

TABLES = ("wav.scp", "text", "utt2spk", "spk2utt")


def run(name, output, *options):
    stage.main([name, "--output_dir", *map(str, (output, *options))])


@pytest.fixture
def sources(make_data_dir):
    """Two directories; the ids of the second sort between those of the first."""
    first, second = make_data_dir(4, "first"), make_data_dir(3, "second")
    for name in TABLES:
        edit(second / name, lambda text: text.replace("s0", "s0x").replace("s1", "s0y"))
    edit(second / "wav.scp", lambda text: text.replace("/s0x", "/s0").replace("/s0y", "/s1"))
    return first, second


def combine(sources, output, *more):
    run("combine_data", output, "--data_dirs", *sources, *more)
    return output


def test_all_tables_are_joined_and_sorted(sources, tmp_path, capsys):
    for source in sources:
        write_table(source / "utt2num_samples", dict.fromkeys(read_table(source / "text"), "800"))
    output = combine(sources, tmp_path / "both", "--languages", "en", "de")
    assert "both: 7 utterances" in capsys.readouterr().err
    assert validate_data_dir(output) == []
    for name in (*TABLES, "utt2num_samples"):
        parts = [read_table(source / name) for source in sources]
        assert read_table(output / name) == parts[0] | parts[1]
    spoken = read_table(output / "utt2lang")
    assert list(spoken.values()) == ["en", "en", "de", "de", "de", "en", "en"]
    assert not (output / "segments").exists()


def test_changed_sources_are_combined_again(sources, tmp_path):
    output = combine(sources, tmp_path / "both")
    assert not (output / "utt2lang").exists()
    made_s = output.stat().st_mtime_ns
    assert combine(sources, output).stat().st_mtime_ns == made_s, "nothing has changed"
    write_table(sources[1] / "utt2lang", {"s0x-u000": "de"})
    edit(sources[0] / "text", lambda text: text.replace("word 0", "another"))
    combine(sources, output)
    assert read_table(output / "utt2lang") == {"s0x-u000": "de"}
    assert read_table(output / "text")["s0-u000"] == "another"


def test_all_or_no_sources_have_segments(sources, tmp_path, capsys):
    first, second = sources
    segments = dict.fromkeys(read_table(first / "utt2spk"), "s0-u000 0 0.1")
    write_table(first / "segments", segments)
    with command_refused(capsys, "second: has no segments, others do"):
        combine(sources, tmp_path / "both")
    segments |= dict.fromkeys(read_table(second / "utt2spk"), "s0x-u000 0 0.1")
    write_table(second / "segments", {key: segments[key] for key in [*segments][4:]})
    assert read_table(combine(sources, tmp_path / "both") / "segments") == segments


def test_bad_sources_are_refused(sources, tmp_path, capsys):
    first, second = sources
    with command_refused(capsys, "1 languages for 2 data directories"):
        combine(sources, tmp_path / "both", "--languages", "en")
    with command_refused(capsys, "first/wav.scp: s0-u000: is also in another", "s1-u003"):
        combine((first, first), tmp_path / "both")
    edit(second / "utt2spk", lambda text: text.replace("s0x\n", "s0x b\n", 1))
    with command_refused(capsys, "second/utt2spk: s0x-u000: has a speaker of more than one word"):
        combine(sources, tmp_path / "both")
    (second / "text").unlink()
    with command_refused(capsys, "second/text: cannot be read"):
        combine(sources, tmp_path / "both")
    assert not (tmp_path / "both").exists()


@pytest.fixture
def formatted(make_data_dir, tmp_path):
    folder = make_data_dir(10)
    for key, duration_s in (("s0-u000", 0.05), ("s1-u001", 0.1), ("s0-u002", 3.0)):
        soundfile.write(folder / "audio" / f"{key}.wav", tone(300, duration_s), RATE_HZ)
    edit(folder / "text", lambda text: text.replace("word 4", ""))
    output = tmp_path / "org"
    format_data_dir(folder, output, FormatOptions(audio=AudioOptions(nj=1), allow_empty_text=True))
    return output


def keep(formatted, output, *more):
    run("filter_data", output, "--input_dir", formatted, *more)
    return output


def test_long_short_and_empty_utterances_are_dropped(formatted, tmp_path, capsys):
    limits = ["--min_wav_duration", "0.1", "--max_wav_duration", "3", "--fs", "16k"]
    output = keep(formatted, tmp_path / "train", *limits)
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
    output = keep(formatted, tmp_path / "more", "--drop_empty_text", "false")
    assert "s0-u004" in read_table(output / "wav.scp")


def test_languages_and_regulations_come_from_the_data_directory(folder, tmp_path):
    keys = list(read_table(folder / "wav.scp"))
    (folder / "audio" / f"{keys[0]}.wav").write_bytes(b"")
    soundfile.write(folder / "audio" / f"{keys[1]}.wav", tone(300, 0.05), RATE_HZ)
    write_table(folder / "utt2lang", dict.fromkeys(keys, "de"))
    write_table(folder / "utt2regulation", {keys[1]: "140 1.01", keys[2]: "190 1.02"})
    options = FormatOptions(audio=AudioOptions(nj=1), on_bad="skip")
    format_data_dir(folder, tmp_path / "org", options)
    assert set(read_table(tmp_path / "org" / "utt2lang")) == set(keys[1:])
    output = keep(tmp_path / "org", tmp_path / "train")
    assert read_table(output / "utt2lang") == dict.fromkeys(keys[2:], "de")
    assert read_table(output / "utt2regulation") == {keys[2]: "190 1.02"}


@pytest.mark.parametrize("place", ["org", "org/../org", "."])
def test_an_output_that_contains_its_input_is_refused(place, formatted, tmp_path, capsys):
    before = tree(tmp_path)
    for write, source in ((keep, formatted), (combine, [formatted])):
        with command_refused(capsys, "it would replace the input"):
            write(source, tmp_path / place)
    assert tree(tmp_path) == before


def test_no_remaining_utterance_and_different_tables_are_errors(formatted, tmp_path, capsys):
    with command_refused(capsys, "none of its 10 utterances is left"):
        keep(formatted, tmp_path / "train", "--min_wav_duration", "10")
    edit(formatted / "utt2num_samples", lambda text: "".join(text.splitlines(True)[1:]))
    with command_refused(capsys, "utt2num_samples: s0-u000: is missing"):
        keep(formatted, tmp_path / "train")
    assert not (tmp_path / "train").exists()


@pytest.mark.parametrize("count", ["\u00b2", "9" * 5000, "-1", "1.5"])
def test_bad_numbers_of_samples_are_refused(formatted, count):
    table = read_table(formatted / "utt2num_samples") | {"s0-u000": count}
    write_table(formatted / "utt2num_samples", table)
    assert_refused(f"s0-u000: {count} is no number", read_dump_dir, formatted, error=DataError)


def perturb(folder, output, factors):
    run("perturb_speed", output, "--data_dir", folder, "--factors", factors, "--nj", "2")
    return output


def test_three_speeds_with_kaldis_names(make_data_dir, tmp_path):
    folder = make_data_dir(3, duration_s=1.0)
    write_table(folder / "utt2lang", {"s0-u000": "en"})
    output = perturb(folder, tmp_path / "sp", "0.9 1.0 1.1")
    assert validate_data_dir(output) == []
    text, utt2spk, entries = (read_table(output / x) for x in ("text", "utt2spk", "wav.scp"))
    assert len(text) == 9
    assert text["sp0.9-s0-u002"] == text["s0-u002"] == "word 2"
    assert utt2spk["sp1.1-s1-u001"] == "sp1.1-s1"
    copies = ["s0-u000", "sp0.9-s0-u000", "sp1.1-s0-u000"]
    assert read_table(output / "utt2lang") == dict.fromkeys(copies, "en")
    assert entries["s0-u000"] == read_table(folder / "wav.scp")["s0-u000"]
    for factor in (0.9, 1.1):
        samples, rate_hz = read_audio(entries[f"sp{factor}-s0-u000"])
        assert rate_hz == 16000
        assert abs(len(samples) - 16000 / factor) <= 1
        assert abs(peak_frequency_hz(samples, rate_hz) - 200 * factor) < 2


def test_segments_and_rate_are_kept(make_data_dir, tmp_path):
    folder = make_data_dir(1)
    soundfile.write(tmp_path / "rec.wav", tone(400, 2.0, 8000), 8000)
    write_table(folder / "wav.scp", {"rec": str(tmp_path / "rec.wav")})
    write_table(folder / "segments", {"s0-u000": "rec 0.5 1.5"})
    output = perturb(folder, tmp_path / "sp", "0.8 1.0")
    assert not (output / "segments").exists()
    read = {key: read_audio(entry) for key, entry in read_table(output / "wav.scp").items()}
    lengths = {key: (len(audio), rate_hz) for key, (audio, rate_hz) in read.items()}
    assert lengths == {"s0-u000": (8000, 8000), "sp0.8-s0-u000": (10000, 8000)}
    # Only other factors repeat the work.
    made_s = (output / ".stamp.json").stat().st_mtime_ns
    perturb(folder, output, "0.8 1.0")
    assert (output / ".stamp.json").stat().st_mtime_ns == made_s
    assert "sp1.1-s0-u000" in read_table(perturb(folder, output, "1.0 1.1") / "wav.scp")


def test_bad_utterance_is_reported_once_and_nothing_is_written(folder, tmp_path, capsys):
    (folder / "audio" / "s0-u000.wav").write_bytes(b"")
    edit(folder / "text", lambda text: text.replace("s1-u001", "s1-u009"))
    given = "perturb_speed", tmp_path / "sp", "--data_dir", folder
    assert_refused("1", run, *given, error=SystemExit)
    ids = [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()]
    assert sorted(ids) == ["s0-u000", "s1-u001", "s1-u009"]
    assert not (tmp_path / "sp").exists()


def test_copies_with_one_id_are_refused(make_data_dir, tmp_path, capsys):
    folder = make_data_dir(2)
    ids = [*read_table(folder / "text")]
    for name in TABLES:
        edit(folder / name, lambda text: text.replace(ids[1], f"sp0.9-{ids[0]}"))
    with command_refused(capsys, "two copies would have one id"):
        perturb(folder, tmp_path / "sp", "0.9 1.0")


@pytest.mark.parametrize("text", ["", "fast", "0.9 0.9", "0", "-1", "nan", "16"])
def test_impossible_factors_are_refused(text):
    assert_refused("factor", parse_factors, text, error=ValueError)
