"""What a journal's lines hold is there again, to the last word."""

import json
from dataclasses import asdict

from espnet_medusa.inference.journal import JOURNAL, Decoded, Hypothesis, Journal
from espnet_medusa.longform.segment import Segment, Word
from espnet_medusa.search.statistics import DecodingStatistics

PLAIN = Decoded("a", [Hypothesis("über", ["ü", "ber"], [3, 4], "tensor(-1.5)")])
STATISTICS = DecodingStatistics(3, 9, 5, drafted=[3, 2], accepted=[2, 0], total_seconds=0.1)
LONG = Decoded(
    "b",
    [Hypothesis(None, [], [], "tensor(0.)"), Hypothesis("x", ["x"], [1], "tensor(-2.)")],
    STATISTICS,
    "de",
    (
        Segment(0, 0.5, 2.25, " x", (7, 1, 8), 0.2, -0.25, 1.5, 0.0, (Word(" x", 0.5, 1.0, 0.75),)),
        Segment(3000, 30.0, 31.0, "", (), 0.0, -1.0, 0.5, 0.9),
    ),
)


def test_lines_are_the_fields_and_come_back(tmp_path):
    journal = Journal(tmp_path, {"beam_size": 1})
    for decoded in (PLAIN, LONG):
        journal.add(decoded)
    lines = (tmp_path / JOURNAL).read_text(encoding="utf-8").splitlines()
    expected = json.loads(json.dumps([asdict(decoded) for decoded in (PLAIN, LONG)]))
    assert [json.loads(line) for line in lines[1:]] == expected and "über" in lines[1]
    assert Journal(tmp_path, {"beam_size": 1}).decoded == {"a": PLAIN, "b": LONG}
    assert Journal(tmp_path, {"beam_size": 2}).decoded == {}
