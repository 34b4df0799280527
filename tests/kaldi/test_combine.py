"""Combined data directories, such as a training set of two languages."""

import pytest
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
    with pytest.raises(SystemExit):
        run(sources, output)
    assert "second: has no segments, others do" in capsys.readouterr().err
    ids = read_table(sources[1] / "utt2spk")
    write_table(sources[1] / "segments", dict.fromkeys(ids, "s0x-u000 0 0.1"))
    run(sources, output)
    assert len(read_table(output / "segments")) == 7


def test_bad_sources_are_refused(sources, tmp_path, capsys):
    def refused(*options: str, parts=sources) -> str:
        with pytest.raises(SystemExit) as stopped:
            run(parts, tmp_path / "both", *options)
        assert stopped.value.code == 1 and not (tmp_path / "both").exists()
        return capsys.readouterr().err

    assert "1 languages for 2 data directories" in refused("--languages", "en")
    message = refused(parts=(sources[0], sources[0]))
    assert "first/wav.scp: s0-u000: is in another of the directories" in message
    assert "s1-u003" in message
    (sources[1] / "text").unlink()
    assert "second/text: cannot be read" in refused()
