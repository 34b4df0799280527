"""Experiments decoded by our inference command in ESPnet's own recipe."""

import os
from pathlib import Path

from exp_folders import statistics, write_score

from espnet_medusa.inference.journal import Decoded, Failed, Journal, NBestEntry
from espnet_medusa.search.statistics import DecodingStatistics

MODEL = "_asr_model_valid.acc.ave"
BASELINE, EXACT, BEAM = f"decode_baseline{MODEL}", f"decode_exact{MODEL}", f"decode_beam{MODEL}"
REFERENCES = {"s1-a": "one two three four five", "s1-b": "one two three"}
REFERENCES |= dict.fromkeys(("s2-c", "s2-d"), "one two three four")
OLD = 1_700_000_000  # seconds since the epoch: what an earlier run wrote


def run_job(
    folder: Path, number: int, results: dict[str, tuple[str, DecodingStatistics] | None]
) -> Path:
    """Write the files of our inference command for a job; None: the utterance failed."""
    output = folder / "logdir" / f"output.{number}"
    journal = Journal(output, {})
    for key, result in results.items():
        if result is None:
            journal.fail(Failed(key, f"{key}.wav: {key}: is truncated"))
        else:
            text, counts = result
            journal.add(Decoded(key, [NBestEntry(text, text.split(), [1], "-1.0")], counts))
    journal.write_outputs([*results], {})
    return output / "statistics.json"


def concatenate(folder: Path, jobs: int) -> None:
    """Join the jobs' files as the end of stage 12: `for i in ...; do cat ...; done | sort`."""
    for name in ("text", "token", "token_int", "score"):
        lines = []
        for number in range(1, jobs + 1):
            path = folder / "logdir" / f"output.{number}" / "1best_recog" / name
            lines += path.read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(sorted(lines)))


def score(folder: Path, references: dict[str, str], err: str) -> None:
    """Pair texts and ids by line number, as `paste` in stage 13, and write sclite's report."""
    write_score(folder, "wer", [(4, 0, 0, 0)] * len(references), err)
    labels = [f"\t({key.split('-')[0]}-{key})" for key in references]
    hypotheses = [line.partition(" ")[2] for line in (folder / "text").read_text().splitlines()]
    hypotheses += [""] * (len(labels) - len(hypotheses))
    for name, texts in (("ref", references.values()), ("hyp", hypotheses)):
        lines = [f"{text}{label}\n" for text, label in zip(texts, labels, strict=True)]
        (folder / "score_wer" / f"{name}.trn").write_text("".join(lines))


def write_plain(exp_dir: Path) -> Path:
    """Write all four utterances without drafts, in one job, and score them."""
    folder = exp_dir / BASELINE / "test"
    counts = ((10, 2.0), (6, 1.0), (8, 3.0), (7, 2.0))
    counted = (statistics(tokens, tokens, seconds) for tokens, seconds in counts)
    texts = [*REFERENCES.values()][:3] + ["one two four"]
    run_job(folder, 1, dict(zip(REFERENCES, zip(texts, counted, strict=True), strict=True)))
    concatenate(folder, 1)
    score(folder, REFERENCES, "6.2")
    return folder


def write_exact(exp_dir: Path, scored: bool = True) -> Path:
    """Write two jobs with drafts; the last utterance failed, jobs 3 and 9 are of an earlier run."""
    folder = exp_dir / EXACT / "test"
    run_job(folder, 1, {
        "s1-a": (REFERENCES["s1-a"], statistics(4, 10, 1.0, drafted=[4, 2], accepted=[3, 1])),
        "s1-b": ("one two", statistics(3, 6, 0.5, drafted=[2, 2], accepted=[2, 1])),
    })  # fmt: skip
    counts = statistics(5, 8, 1.5, drafted=[4, 1], accepted=[3, 0])
    run_job(folder, 2, {"s2-c": (REFERENCES["s2-c"], counts), "s2-d": None})
    for number, key in ((3, "s2-c"), (9, "s2-d")):
        path = run_job(folder, number, {key: (REFERENCES[key], statistics(99, 99, 99.0))})
        os.utime(path, (OLD, OLD))
    concatenate(folder, 2)
    if scored:
        score(folder, REFERENCES, "37.5")
    return folder


def write_dev(exp_dir: Path) -> Path:
    """Write a scored utterance of the validation set, which eval_valid_set decodes."""
    folder = exp_dir / EXACT / "org" / "dev"
    counts = statistics(2, 8, 1.0, drafted=[2, 2], accepted=[2, 2])
    run_job(folder, 1, {"s9-x": ("one two three", counts)})
    concatenate(folder, 1)
    score(folder, {"s9-x": "one two three"}, "0.0")
    return folder
