import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_medusa.bin import split_scp as command
from espnet_medusa.kaldi.split import split_scp
from espnet_medusa.kaldi.table import write_table


@given(n_keys=st.integers(1, 50), nj=st.integers(1, 60))
def test_parts_are_even_runs_that_join_to_the_whole(n_keys, nj):
    keys = list(range(n_keys))
    parts = split_scp(keys, nj)
    assert len(parts) == min(n_keys, nj)
    assert [key for part in parts for key in part] == keys
    lengths = [len(part) for part in parts]
    assert min(lengths) >= 1 and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("keys, nj", [([], 1), ([1], 0)])
def test_nothing_to_split_is_an_error(keys, nj):
    with pytest.raises(ValueError):
        split_scp(keys, nj)


def test_command_writes_one_file_for_each_job(tmp_path, capsys):
    write_table(tmp_path / "wav.scp", {f"u{i}": f"{i}.wav" for i in range(5)})
    command.main(["--nj", "2", str(tmp_path / "wav.scp"), str(tmp_path / "log/keys.JOB.scp")])
    assert capsys.readouterr().out == "2\n"
    parts = [(tmp_path / f"log/keys.{job}.scp").read_text() for job in (1, 2)]
    assert "".join(parts) == (tmp_path / "wav.scp").read_text()
    with pytest.raises(SystemExit):
        command.main(["--nj", "2", str(tmp_path / "wav.scp"), str(tmp_path / "keys.scp")])
