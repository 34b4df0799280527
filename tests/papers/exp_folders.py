"""Small experiment folders with known statistics and scores."""

from pathlib import Path

from espnet_medusa.statistics import DecodingStatistics, add_eta, write_statistics


def write_decoding(
    exp_dir: Path,
    tag: str,
    test_set: str,
    seconds: dict[str, float],
    tokens: int = 10,
    calls: int | None = None,
) -> Path:
    """A decoding with the total seconds of each utterance, of 10 s; returns its folder.

    Half of the seconds are the search's; without drafts there are as many calls as tokens.
    """
    folder = exp_dir / tag / test_set
    folder.mkdir(parents=True)
    utterances = {
        key: DecodingStatistics(
            decoder_calls=calls or tokens,
            tokens=tokens,
            total_seconds=value,
            decoder_seconds=value / 2,
            audio_seconds=10.0,
        )
        for key, value in seconds.items()
    }
    write_statistics(folder / "statistics.json", utterances)
    (folder / "text").write_text("".join(f"{key} words\n" for key in seconds))
    return folder


def write_score(
    folder: Path, rate: str, counts: list[tuple[int, int, int, int]], err: str = "0.0"
) -> None:
    """An sclite report: correct, substituted, deleted, inserted of each utterance."""
    lines = [f"| Sum/Avg | {len(counts)} 8 | 0.0 0.0 0.0 0.0 {err} 0.0 |"]
    for number, scores in enumerate(counts):
        lines += [f"id: (s-{number})", "Scores: (#C #S #D #I) " + " ".join(map(str, scores)), ""]
    place = folder / f"score_{rate}"
    place.mkdir()
    (place / "result.txt").write_text("\n".join(lines) + "\n")


def write_eta(folder: Path, reference_words: dict[str, int], hypothesis_words: int) -> None:
    """What scoring adds to the statistics: words of each reference, and of any hypothesis."""
    words = dict.fromkeys(reference_words, hypothesis_words)
    add_eta(folder / "statistics.json", reference_words, words)
