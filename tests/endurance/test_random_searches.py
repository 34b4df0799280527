"""A few random searches, and a wrong search that must be reported."""

import random

import random_s2t
import random_searches
import searches
from cases import cases, combinations
from harness import read_rows
from random_s2t import cases_of_a_model
from random_searches import DIFFERS, beam_case, greedy_case
from tiny import tiny_decoder

from espnet_medusa.inference import s2t
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.upstream.compat import LengthBonus


@cases((random_searches, ": 0 mismatches"), (random_s2t, "6 calls of 1 s2t models"))
def test_a_few_cases_write_a_row(check, found, tmp_path):
    table = tmp_path / "checks.md"
    check.main(["--cases", "6", "--table", str(table)])
    (row,) = read_rows(table)
    assert row.right == "yes" and found in row.found
    assert row.command == f"{check.__name__}.py --cases 6 --seed 0"


@combinations(case=[greedy_case, beam_case])
def test_a_search_over_another_decoder_is_a_mismatch(monkeypatch, case):
    def two_decoders(seed, *_):
        module = tiny_decoder(seed, "linear", 4)
        return module, build_runtime(searches.nearly(module, seed, noise=0.5))

    monkeypatch.setattr(searches, "drafted_by", two_decoders)
    assert case(random.Random(3), 3) == DIFFERS


def test_another_s2t_search_is_a_mismatch(tmp_path, monkeypatch):
    monkeypatch.setattr(s2t, "TimestampFilter", lambda rules: LengthBonus(rules.vocab_size))
    outcomes = (cases_of_a_model(seed, tmp_path / str(seed)) for seed in range(3))
    assert any(DIFFERS in found for found in outcomes)
