"""Small experiment folders with known statistics and scores."""

from collections.abc import Callable
from pathlib import Path

import pytest

from espnet_medusa.decoding.search.statistics import DecodingStatistics, add_eta, write_statistics


def statistics(calls: int, tokens: int, seconds: float, **counts: object) -> DecodingStatistics:
    """Return those of an utterance of 10 s; the search takes half of the seconds."""
    times = {"total_seconds": seconds, "decoder_seconds": seconds / 2, "audio_seconds": 10.0}
    return DecodingStatistics(decoder_calls=calls, tokens=tokens, **times, **counts)


def write_decoding(
    exp_dir: Path, tag: str, test_set: str, seconds: dict[str, float], tokens: int = 10,
    calls: int | None = None, **counts: object,
) -> Path:  # fmt: skip
    """Write a decoding with seconds by utterance; return its folder. All have these ``counts``."""
    folder = exp_dir / tag / test_set
    folder.mkdir(parents=True)
    calls = tokens if calls is None else calls
    utterances = {key: statistics(calls, tokens, value, **counts) for key, value in seconds.items()}
    write_statistics(folder / "statistics.json", utterances)
    (folder / "text").write_text("".join(f"{key} words\n" for key in seconds))
    return folder


def write_espnet_decoding(
    exp_dir: Path, tag: str, test_set: str, jobs: list[dict[str, float | None]]
) -> Path:
    """Write ESPnet's files for jobs (seconds by id; None: no hypothesis); return their folder."""
    folder = exp_dir / tag / test_set
    for number, seconds in enumerate(jobs, 1):
        results = folder / "logdir" / f"output.{number}" / "1best_recog"
        results.mkdir(parents=True)
        (results / "text").write_text("".join(f"{key} words\n" for key in seconds))
        lines, clock = [], 0.0
        for value in seconds.values():
            lines.append(_log_line(clock, "speech length: 160000"))
            if value is not None:
                lines.append(_log_line(clock + value, "best hypo: words"))
            clock += 10.0
        (folder / "logdir" / f"asr_inference.{number}.log").write_text("".join(lines))
    keys = sorted(key for seconds in jobs for key in seconds)
    (folder / "text").write_text("".join(f"{key} words\n" for key in keys))
    return folder


def _log_line(seconds: float, text: str) -> str:
    clock = f"{int(seconds // 60):02d}:{seconds % 60:06.3f}".replace(".", ",")
    return f"2026-11-21 01:{clock} (asr_inference:522) INFO: {text}\n"


def write_score(
    folder: Path, rate: str, counts: list[tuple[int, int, int, int]], err: str = "0.0"
) -> None:
    """Write an sclite report: correct, substituted, deleted, inserted of each utterance."""
    lines = [f"| Sum/Avg | {len(counts)} 8 | 0.0 0.0 0.0 0.0 {err} 0.0 |"]
    for number, scores in enumerate(counts):
        lines += [f"id: (s-{number})", "Scores: (#C #S #D #I) " + " ".join(map(str, scores)), ""]
    place = folder / f"score_{rate}"
    place.mkdir()
    (place / "result.txt").write_text("\n".join(lines) + "\n")


def write_eta(folder: Path, reference_words: dict[str, int], hypothesis_words: int) -> None:
    words = dict.fromkeys(reference_words, hypothesis_words)
    add_eta(folder / "statistics.json", reference_words, words)


def error_of(capsys, command: Callable[[], object]) -> str:
    with pytest.raises(SystemExit) as stop:
        command()
    assert stop.value.code == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith("report: error: ")
    return message
