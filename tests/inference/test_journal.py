"""A journal returns the results that were recorded."""

import json
from dataclasses import asdict, replace

import pytest

from espnet_medusa.inference.journal import JOURNAL, Decoded, Journal, NBestEntry
from espnet_medusa.longform.segment import Segment, Word
from espnet_medusa.search.statistics import DecodingStatistics

PLAIN = Decoded("a", [NBestEntry("über", ["ü", "ber"], [3, 4], "tensor(-1.5)")])
STATISTICS = DecodingStatistics(3, 9, 5, drafted=[3, 2], accepted=[2, 0], total_seconds=0.1)
LONG = Decoded(
    "b",
    [NBestEntry(None, [], [], "tensor(0.)"), NBestEntry("x", ["x"], [1], "tensor(-2.)")],
    STATISTICS,
    "de",
    (
        Segment(0, 0.5, 2.25, " x", (7, 1, 8), 0.2, -0.25, 1.5, 0.0, (Word(" x", 0.5, 1.0, 0.75),)),
        Segment(3000, 30.0, 31.0, "", (), 0.0, -1.0, 0.5, 0.9),
    ),
)


def test_recorded_results_are_read_back(tmp_path):
    journal = Journal(tmp_path, {"beam_size": 1})
    for decoded in (PLAIN, LONG):
        journal.add(decoded)
    lines = (tmp_path / JOURNAL).read_text(encoding="utf-8").splitlines()
    expected = json.loads(json.dumps([asdict(decoded) for decoded in (PLAIN, LONG)]))
    assert [json.loads(line) for line in lines[1:]] == expected and "über" in lines[1]
    assert Journal(tmp_path, {"beam_size": 1}).decoded == {"a": PLAIN, "b": LONG}
    assert Journal(tmp_path, {"beam_size": 2}).decoded == {}


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_line_that_an_interruption_cut_is_ignored(tmp_path, cut):
    journal = Journal(tmp_path, {})
    odd = replace(PLAIN, key="odd", nbest=[replace(PLAIN.nbest[0], text="a\u2028b\x85c")])
    last = replace(PLAIN, key="\u00fc")
    for decoded in (odd, last):
        journal.add(decoded)
    data = (tmp_path / JOURNAL).read_bytes()
    end = data.rindex("\u00fc".encode()) + 1 if cut == 1 else len(data) - cut
    (tmp_path / JOURNAL).write_bytes(data[:end])
    assert Journal(tmp_path, {}).decoded == {"odd": odd}
