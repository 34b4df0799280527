"""How ESPnet's calculate_rtf.py reads inference logs."""

from pathlib import Path

from dateutil import parser


def espnet_seconds(log: Path) -> tuple[int, int, float]:
    """Utterances, samples and seconds of a log.

    The n-th end minus the n-th start, as many of each; what stands before the first bracket of
    their lines is a time of day, and the rest of the first a number.
    """
    samples, starts, ends = [], [], []
    for line in log.read_text(encoding="utf-8").splitlines():
        if "INFO: speech length" in line:
            samples.append(int(line.strip().split("speech length: ")[1]))
            starts.append(parser.parse(line.split("(")[0]))
        elif "INFO: best hypo" in line:
            ends.append(parser.parse(line.split("(")[0]))
    pairs = zip(starts, ends, strict=True)
    return len(starts), sum(samples), sum((end - start).total_seconds() for start, end in pairs)
