"""Combined data directories, such as a training set of two languages."""

import pytest
from refusals import command_refused
from tones import edit

from espnet_medusa import stages
from espnet_medusa.kaldi.data_dir import validate_data_dir
from espnet_medusa.kaldi.table import read_table, write_table


@pytest.fixture
def sources(make_data_dir):
    """Two directories; the ids of the second sort between those of the first."""
    first, second = make_data_dir(4, "first"), make_data_dir(3, "second")
    for name in ("wav.scp", "text", "utt2spk", "spk2utt"):
        edit(second / name, lambda text: text.replace("s0", "s0x").replace("s1", "s0y"))
    edit(second / "wav.scp", lambda text: text.replace("/s0x", "/s0").replace("/s0y", "/s1"))
    return first, second


def run(sources, output, *more):
    stages.main(
        ["combine_data", "--data_dirs", *map(str, sources), "--output_dir", str(output), *more]
    )


def test_all_tables_are_joined_and_sorted(sources, tmp_path, capsys):
    output = tmp_path / "both"
    run(sources, output, "--languages", "en", "de")
    assert "both: 7 utterances" in capsys.readouterr().err
    assert validate_data_dir(output) == []
    for name in ("wav.scp", "text", "utt2spk", "spk2utt"):
        parts = [read_table(source / name) for source in sources]
        assert read_table(output / name) == parts[0] | parts[1]
    spoken = read_table(output / "utt2lang")
    assert list(spoken.values()) == ["en", "en", "de", "de", "de", "en", "en"]
    assert not (output / "segments").exists()


def test_changed_sources_are_combined_again(sources, tmp_path):
    output = tmp_path / "both"
    run(sources, output)
    assert not (output / "utt2lang").exists()
    made_s = output.stat().st_mtime_ns
    run(sources, output)
    assert output.stat().st_mtime_ns == made_s, "nothing has changed"
    write_table(sources[1] / "utt2lang", {"s0x-u000": "de"})
    edit(sources[0] / "text", lambda text: text.replace("word 0", "another"))
    run(sources, output)
    assert read_table(output / "utt2lang") == {"s0x-u000": "de"}
    assert read_table(output / "text")["s0-u000"] == "another"


def test_all_or_no_sources_have_segments(sources, tmp_path, capsys):
    output = tmp_path / "both"
    write_table(sources[0] / "segments", {f"s{i % 2}-u{i:03d}": "s0-u000 0 0.1" for i in range(4)})
    with command_refused(capsys, "second: has no segments, others do"):
        run(sources, output)
    ids = read_table(sources[1] / "utt2spk")
    write_table(sources[1] / "segments", dict.fromkeys(ids, "s0x-u000 0 0.1"))
    run(sources, output)
    assert len(read_table(output / "segments")) == 7


def test_bad_sources_are_refused(sources, tmp_path, capsys):
    first, second = sources
    with command_refused(capsys, "1 languages for 2 data directories"):
        run(sources, tmp_path / "both", "--languages", "en")
    with command_refused(capsys, "first/wav.scp: s0-u000: is in another", "s1-u003"):
        run((first, first), tmp_path / "both")
    (second / "text").unlink()
    with command_refused(capsys, "second/text: cannot be read"):
        run(sources, tmp_path / "both")
    assert not (tmp_path / "both").exists()
