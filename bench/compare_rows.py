"""From measurements to the figures of the comparison."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median, quantiles

import jiwer
from peers.schedule import OURS, Comparison, Measurement
from peers.subject import Subject
from peers.way import DRAFTERS, HEADS, REPLAYED, Way

Batch = tuple[str, ...]
MILLI = 1000.0
STRICT = "float32"


def make_result(subject: Subject, comparison: Comparison, scoring) -> dict:
    """All figures of one subject.

    Args:
        subject: What was decoded.
        comparison: What was measured.
        scoring: ``to_text``, ``references`` and ``seconds`` by input; None: memories, no text.
    """
    found = {row.way for row in comparison.rows}
    ways = [way for way in comparison.ways if way in found]
    measured = {way: [row for row in comparison.rows if row.way == way] for way in ways}
    rows = []
    for way in ways:
        references = _references(way, measured)
        row = asdict(way) | {"label": way.label} | _times(subject, measured[way])
        row |= {
            name: quartiles(ratios(measured[way], measured[other]))
            for name, other in references.items()
        }
        plain = measured.get(Way(OURS, STRICT, way.search))
        row["same_tokens"] = None if plain is None else same_tokens(measured[way], plain)
        row |= comparison.memory.get(way, {})
        if scoring is not None:
            row |= _text(measured[way], scoring)
        rows.append(row)
    return {
        "subject": subject.name,
        "sizes": asdict(subject.sizes),
        "inputs": len(subject.inputs),
        "fixed_tokens": subject.fixed_tokens,
        "rows": rows,
        "frames": comparison.frames,
        "calls": [
            {"weights": weights, "nodes": nodes, "ms": quartiles([MILLI * one for one in seconds])}
            for (weights, nodes), seconds in comparison.calls.items()
        ],
        "tokens_per_call": _measured_acceptance(measured),
        "left_out": comparison.left_out,
    }


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * [*values]


def by_batch(rows: Iterable[Measurement]) -> dict[Batch, list[Measurement]]:
    """Measurements of the same inputs together."""
    batches: dict[Batch, list[Measurement]] = {}
    for row in rows:
        batches.setdefault(row.names, []).append(row)
    return batches


def ratios(slow: Iterable[Measurement], fast: Iterable[Measurement]) -> list[float]:
    """Seconds over seconds, of each batch of inputs; medians over rounds."""
    others = {names: median(row.seconds for row in rows) for names, rows in by_batch(fast).items()}
    return [
        median(row.seconds for row in rows) / others[names]
        for names, rows in by_batch(slow).items()
        if names in others
    ]


def same_tokens(rows: Iterable[Measurement], others: Iterable[Measurement]) -> int:
    """In how many inputs the tokens agree."""
    first, second = tokens_by_input(rows), tokens_by_input(others)
    return sum(first[name] == second.get(name) for name in first)


def tokens_by_input(rows: Iterable[Measurement]) -> dict[str, list[int]]:
    """Of the first round."""
    found: dict[str, list[int]] = {}
    for row in rows:
        for name, tokens in zip(row.names, row.tokens, strict=True):
            found.setdefault(name, tokens)
    return found


def tokens_file(comparison: Comparison) -> dict:
    """What everybody wrote: ours in float32 without drafts, and where others differ from it."""
    measured: dict[Way, list[Measurement]] = {}
    for row in comparison.rows:
        measured.setdefault(row.way, []).append(row)
    plain = {
        way.search: tokens_by_input(rows)
        for way, rows in measured.items()
        if way == Way(OURS, STRICT, way.search)
    }
    different = {}
    for way, rows in measured.items():
        expected = plain.get(way.search, {})
        name = f"{way.label}, {way.weights}, {way.search}, batch {way.batch_size}"
        different[name] = {
            key: " ".join(map(str, tokens))
            for key, tokens in tokens_by_input(rows).items()
            if tokens != expected.get(key)
        }
    tokens = {
        search: {name: " ".join(map(str, one)) for name, one in found.items()}
        for search, found in plain.items()
    }
    return {"tokens": tokens, "different": different}


def _references(way: Way, measured: Mapping[Way, list[Measurement]]) -> dict[str, Way]:
    """Whom a row is compared with: ours with drafts, the fastest in float32 and of all.

    Stated acceptances other than the measured one are no reference.
    """
    ours = [
        other
        for other in measured
        if (other.search, other.batch_size) == (way.search, way.batch_size)
        and (other.drafts in (*DRAFTERS, REPLAYED) and not other.tokens_per_call)
    ]
    if not ours:
        return {}

    def seconds(other: Way) -> float:
        batches = by_batch(measured[other]).values()
        return sum(median(row.seconds for row in rows) for rows in batches)

    references = {"times_ours_fastest": min(ours, key=seconds)}
    strict = [other for other in ours if other.weights == STRICT]
    return references | ({"times_ours_float32": min(strict, key=seconds)} if strict else {})


def _times(subject: Subject, rows: Sequence[Measurement]) -> dict:
    """Milliseconds and counts of one way."""
    ends = 0 if subject.fixed_tokens else 1  # the end symbol is decoded, too
    per_token, per_input, encoder = [], [], []
    for names, group in by_batch(rows).items():
        written = sum(len(tokens) + ends for tokens in group[0].tokens)
        decoder = median(row.decoder_seconds for row in group)
        per_token.append(MILLI * decoder / max(written, 1))
        per_input.append(MILLI * median(row.seconds for row in group) / len(names))
        encoder.append(MILLI * median(row.encoder_seconds for row in group) / len(names))
    written = sum(len(tokens) + ends for row in rows for tokens in row.tokens)
    calls = sum(row.calls or 0 for row in rows)
    return {
        "measurements": len(rows),
        "ms_per_token": quartiles(per_token),
        "ms_per_input": quartiles(per_input),
        "encoder_ms": median(encoder),
        "measured_tokens_per_call": written / calls if calls else None,
        "nodes_per_call": sum(row.nodes or 0 for row in rows) / calls if calls else None,
    }


def _text(rows: Sequence[Measurement], scoring) -> dict:
    """Word error rate in percent and real-time factor, audio to text."""
    tokens = tokens_by_input(rows)
    references = [scoring.references[name] for name in tokens]
    texts = [scoring.to_text(one) for one in tokens.values()]
    seconds = sum(median(row.seconds for row in group) for group in by_batch(rows).values())
    return {
        "wer": 100 * jiwer.wer(references, texts),
        "rtf": seconds / sum(scoring.seconds[name] for name in tokens),
    }


def _measured_acceptance(measured: Mapping[Way, list[Measurement]]) -> dict[str, dict[str, int]]:
    """By search, how many calls of trained heads wrote (or stepped over) so many tokens."""
    found: dict[str, dict[str, int]] = {}
    for way, rows in measured.items():
        if way == Way(OURS, STRICT, way.search, drafts=HEADS):
            counts = found.setdefault(way.search, {})
            for group in by_batch(rows).values():
                for tokens, calls in (group[0].tokens_per_call or {}).items():
                    counts[tokens] = counts.get(tokens, 0) + calls
    return found
