"""Compute the figures of a table's rows from the measurements."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles

import numpy as np
from contestants.base import MEMORIES, OPENAI_WHISPER, PLAN, RECORDINGS, REFERENCE, Result, Timed
from contestants.ways import BASELINE, FLOAT32, OURS, Way
from runner import Journal
from segments import common_segments, first_difference, same_segments, word_time_difference

from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.recipes.report.measures import ratio_of_sums
from espnet_medusa.recipes.scoring.alignment import align
from espnet_medusa.recipes.scoring.sclite import Counts
from espnet_medusa.recipes.tokens import make_cleaner

MILLI, HOUR_S = 1000.0, 3600.0
WHISPER_CLEANER = "whisper_en"
TIE = 1e-3  # smaller differences of scores come from the order of summation


@dataclass(frozen=True)
class Inputs:
    """The inputs of a table: ids, references, lengths, and how they are compared."""

    kind: str  # ``MEMORIES``, ``SPEECH``, ``LENGTHS``, ``RECORDINGS`` or ``PLAN``
    names: Sequence[str]  # ids of the inputs that are reported
    # Texts by id; empty: texts are not scored.
    references: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # length of the audio by id
    cleaner: str = WHISPER_CLEANER  # ESPnet's cleaner of references and texts
    end_symbol: bool = True  # whether the decoder evaluates the end symbol of each text
    greedy: Sequence[str] = ()  # searches of a plan with one hypothesis
    # Converts tokens to text, for contestants that write tokens.
    to_text: Callable[[list[int]], str] | None = None


class Group:
    """The measurements of one way, by batch; seconds are medians over the rounds."""

    def __init__(self, journal: Journal, way: Way, names: Sequence[str]):
        rounds: dict[tuple[str, ...], list[Timed]] = {}
        wanted = {*names}
        for row in journal.of(way):
            if wanted.issuperset(row.names):
                rounds.setdefault(row.names, []).append(row.timed)
        self.batches = [*rounds]
        self.encoder, self.decoder, self.seconds = (
            np.array([median(getattr(one, name) for one in timed) for timed in rounds.values()])
            for name in ("encoder_seconds", "decoder_seconds", "seconds")
        )
        self.sizes = np.array([*map(len, rounds)])
        self.results: dict[str, Result] = {}
        for batch, timed in rounds.items():
            self.results.update(zip(batch, timed[0].results, strict=True))

    @property
    def counts(self) -> list[DecodingStatistics] | None:
        """Statistics of each input; None: the contestant counts nothing."""
        counts = [result.counts for result in self.results.values()]
        return None if None in counts else [DecodingStatistics(**one) for one in counts]


def make_rows(journal: Journal, ways: Sequence[Way], inputs: Inputs) -> list[dict]:
    """Return a dict of figures for each way that was measured."""
    groups = {way: Group(journal, way, inputs.names) for way in ways}
    groups = {way: group for way, group in groups.items() if group.results}
    return [_row(way, groups, inputs) for way in groups]


def _row(way: Way, groups: Mapping[Way, Group], inputs: Inputs) -> dict:
    group = groups[way]
    row = {name: value for name, value in asdict(way).items() if name != "made_with"}
    row |= {"label": _label(way, inputs.kind), "inputs": len(group.results)}
    row |= _times(group, inputs) | _counts(group, inputs)
    if inputs.references:
        row["wer"] = _wer(group, inputs)
    row |= _speed(way, groups, inputs) | _agreement(way, groups, inputs)
    if inputs.kind == RECORDINGS:
        row |= _recordings(way, groups)
    return row


def _label(way: Way, kind: str) -> str:
    """The row's first cell: contestant, weights (memories have a column for them) and drafts."""
    name, _, drafts = way.label.partition(", ")
    if kind == MEMORIES:
        return way.label
    if kind == PLAN:
        together = f", {way.batch_size} together" if way.batch_size > 1 else ""
        return way.contestant + together
    batches = f"in batches of {way.batch_size}" if way.batch_size > 1 else ""
    return ", ".join(filter(None, [name, way.weights, drafts, batches]))


def _times(group: Group, inputs: Inputs) -> dict:
    """Milliseconds per input (medians over batches), and seconds of all inputs."""
    row = {
        "encoder_ms": MILLI * float(median(group.encoder / group.sizes)),
        "decoder_ms": MILLI * float(median(group.decoder / group.sizes)),
        "ms": MILLI * float(median(group.seconds / group.sizes)),
        "seconds": float(group.seconds.sum()),
        "decoder_seconds": float(group.decoder.sum()),
    }
    if inputs.kind == MEMORIES:
        written = [
            max(sum(len(group.results[name].tokens) + inputs.end_symbol for name in batch), 1)
            for batch in group.batches
        ]
        row["ms_per_token"] = quartiles(MILLI * group.decoder / np.array(written))
        row["ms_per_input"] = quartiles(MILLI * group.seconds / group.sizes)
        if not inputs.seconds:
            del row["encoder_ms"]  # the inputs are encoder outputs
    if inputs.seconds:
        audio = sum(inputs.seconds[name] for name in group.results)
        per_hour = HOUR_S / audio
        row["rtf"] = row["seconds"] / audio
        row["encoder_s"] = float(group.encoder.sum()) * per_hour
        row["decoder_s"] = row["decoder_seconds"] * per_hour
        row["seconds_per_hour"] = row["seconds"] * per_hour
    return row


def quartiles(values: Sequence[float]) -> list[float]:
    """Return lower quartile, median and upper quartile."""
    values = [float(value) for value in values]
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values


def _counts(group: Group, inputs: Inputs) -> dict:
    """Calls, tokens and nodes; empty for contestants that count nothing."""
    counts = group.counts
    if counts is None:
        return {}
    total, number = sum(counts, DecodingStatistics()), len(counts)
    summary = total.summary()
    calls = np.array([one.decoder_calls for one in counts])
    return {
        "calls": total.decoder_calls,
        "calls_per_input": ratio(calls, np.ones(number)),
        "tokens_per_call": ratio([one.tokens for one in counts], calls),
        "nodes_per_call": summary["nodes_per_call"],
        "no_call": 100 * float(np.mean(calls == 0)),
        "accepted": [100 * share for share in summary["acceptance_per_head"]],
        "draft_calls": total.draft_calls / number if total.draft_calls else None,
        "draft_ms": MILLI * total.draft_seconds / number if total.drafted else None,
    }


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> dict | None:
    """Return the ratio of sums with its interval."""
    estimate = ratio_of_sums(np.array(numerators), np.array(denominators))
    return estimate and asdict(estimate)


def word_errors(
    references: Sequence[str], texts: Sequence[str], cleaner: str = WHISPER_CLEANER
) -> list[Counts]:
    """Count the word errors of N texts; raise ValueError if ESPnet lacks the cleaner."""
    clean = make_cleaner(cleaner)
    pairs = zip(map(clean, references), map(clean, texts), strict=True)
    return [Counts.of_operations(align(first.split(), second.split())) for first, second in pairs]


def error_rate(errors: Sequence[Counts]) -> dict | None:
    """Return the word error rate in percent with its interval."""
    return ratio([100 * one.errors for one in errors], [one.words for one in errors])


def _wer(group: Group, inputs: Inputs) -> dict | None:
    names = [*group.results]
    texts = [group.results[name].text for name in names]
    if inputs.to_text is not None:
        texts = [inputs.to_text(group.results[name].tokens) for name in names]
    references = [inputs.references[name] for name in names]
    return error_rate(word_errors(references, texts, inputs.cleaner))


def _speed(way: Way, groups: Mapping[Way, Group], inputs: Inputs) -> dict:
    """Return the speedup over a reference row: the median of ratios, or the ratio of sums.

    Rows of a plan are compared with the first row of their search, by decoder seconds. Other tables
    have the reference ``REFERENCE``; for recordings, the one without batches.
    """
    if inputs.kind == PLAN:
        rows = (one for one in groups if one.search == way.search)
        first = next(one for one in rows if one.batch_size == way.batch_size)
        if first == way or groups[first].batches != groups[way].batches:
            return {}
        calls = [groups[key].counts for key in (first, way)]
        fewer = [sum(one.decoder_calls for one in counts) for counts in calls]
        speed = ratio(groups[first].decoder, groups[way].decoder)
        return {"speed": speed, "fewer_calls": fewer[0] / fewer[1] if fewer[1] else None}
    size = 1 if inputs.kind == RECORDINGS else way.batch_size
    reference = groups.get(Way(*REFERENCE[inputs.kind], way.search, size))
    if reference is None or reference.batches != groups[way].batches:
        return {}
    if inputs.kind == RECORDINGS:
        return {"speed": {"value": float(reference.seconds.sum() / groups[way].seconds.sum())}}
    return {"speed": {"value": quartiles(reference.seconds / groups[way].seconds)[1]}}


def _agreement(way: Way, groups: Mapping[Way, Group], inputs: Inputs) -> dict:
    """Number of inputs with the baseline's output."""
    results = groups[way].results
    if inputs.kind == MEMORIES:  # ours in float32, one by one
        expected = groups.get(Way(OURS, FLOAT32, way.search))
        if expected is None:
            return {"same_tokens": None}
        pairs = [(result, expected.results.get(name)) for name, result in results.items()]
        return {"same_tokens": sum(b is not None and a.tokens == b.tokens for a, b in pairs)}
    if inputs.kind == PLAN:
        greedy = way.search in inputs.greedy
        first = next(other for other in groups if other.search == way.search)
        expected = groups[first].results
        known = [name for name in results if name in expected]
        same = sum(agree(results[name], expected[name], greedy) for name in known)
        return {"same" if greedy else "same_nbest": f"{same}/{len(results)}"}
    plain = groups.get(Way(way.contestant, way.weights, way.search, way.batch_size))
    if way.drafts == BASELINE or plain is None:
        return {}
    pairs = [(plain.results[name], result) for name, result in results.items()]
    if inputs.kind == RECORDINGS:
        same = sum(same_segments(*pair) for pair in pairs)
    else:
        same = sum(one.text == other.text for one, other in pairs)
    return {"same": f"{same}/{len(results)}"}


def agree(result: Result, expected: Result, greedy: bool) -> bool:
    """Return whether texts (greedy search), or n-best lists up to ties, are equal."""
    if greedy:
        return result.text == expected.text
    scores, wanted = ({tuple(ids): score for ids, score in one.nbest} for one in (result, expected))
    return (
        len(result.nbest) == len(expected.nbest)
        and scores.keys() == wanted.keys()
        and all(abs(score - wanted[tokens]) < TIE for tokens, score in scores.items())
    )


def openai_reference(way: Way) -> Way | None:
    """Return openai-whisper's row, with which the segments of ``way`` are compared, if any."""
    theirs = Way(OPENAI_WHISPER, FLOAT32, way.search)
    return theirs if way.weights == FLOAT32 and way.batch_size == 1 and way != theirs else None


def _recordings(way: Way, groups: Mapping[Way, Group]) -> dict:
    """Segments, and how many of them equal openai-whisper's."""
    results = groups[way].results
    segments = [segment for result in results.values() for segment in result.segments]
    row: dict = {"segments": len(segments)}
    if drawn := sum(segment.temperature > 0 for segment in segments):
        row["drawn"] = drawn
    reference = groups.get(openai_reference(way))
    if reference is not None:
        pairs = [(reference.results[name], result) for name, result in results.items()]
        equal = sum(same_segments(*pair) for pair in pairs)
        row["as_openai"] = f"{equal}/{len(pairs)}"
        count = sum(len(theirs.segments) for theirs, _ in pairs)
        row["segments_as_openai"] = f"{sum(common_segments(*pair) for pair in pairs)}/{count}"
        if (difference := word_time_difference(pairs)) is not None:
            row["word_times_differ_s"] = difference
    return row


def differences(journal: Journal, ways: Sequence[Way], inputs: Inputs) -> list[dict]:
    """Describe, for each recording, the first segment that differs from openai-whisper's."""
    groups = {way: Group(journal, way, inputs.names) for way in ways}
    found = []
    for way, group in groups.items():
        reference = groups.get(openai_reference(way))
        if reference is None or not reference.results:
            continue
        for name, result in group.results.items():
            difference = first_difference(reference.results[name], result)
            if difference is not None:
                label = _label(way, inputs.kind)
                found.append({"label": label, "search": way.search, "recording": name} | difference)
    return found
