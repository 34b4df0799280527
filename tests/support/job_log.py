"""The log and the n-best files of a decoding job, as ESPnet's commands write them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dateutil import parser
from experiment import read_lines

FORMATTER = logging.Formatter("%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s")


@contextmanager
def log_to(path: Path, name: str | None = None) -> Iterator[logging.Logger]:
    handler, logger = logging.FileHandler(path, encoding="utf-8"), logging.getLogger(name)
    handler.setFormatter(FORMATTER)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


def assert_same_nbest_files(ours: Path, theirs: Path, names: tuple[str, ...]) -> None:
    """Compare the files of two ranks; scores, printed with four decimals, differ by rounding."""
    for rank in ("1best_recog", "2best_recog"):
        for name in names:
            assert (ours / rank / name).read_text() == (theirs / rank / name).read_text(), name
        result, expected = (read_lines(folder / rank / "score") for folder in (ours, theirs))
        assert result.keys() == expected.keys()
        for key, score in expected.items():
            assert result[key].startswith("tensor(") and result[key].endswith(")")
            assert float(result[key][7:-1]) == pytest.approx(float(score[7:-1]), abs=2e-4)


def espnet_seconds(log: Path) -> tuple[int, int, float]:
    """Return utterances, samples and seconds of a log, as ESPnet's calculate_rtf.py reads them."""
    samples, starts, ends = [], [], []
    for line in log.read_text(encoding="utf-8").splitlines():
        if "INFO: speech length" in line:
            samples.append(int(line.strip().split("speech length: ")[1]))
            starts.append(parser.parse(line.split("(")[0]))
        elif "INFO: best hypo" in line:
            ends.append(parser.parse(line.split("(")[0]))
    pairs = zip(starts, ends, strict=True)
    return len(starts), sum(samples), sum((end - start).total_seconds() for start, end in pairs)
