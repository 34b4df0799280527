import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_medusa.kaldi.table import split_scp


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
