"""Small experiment folders with known statistics and scores."""

from pathlib import Path

from espnet_medusa.statistics import DecodingStatistics, write_statistics


def write_decoding(
    exp_dir: Path, tag: str, test_set: str, seconds: dict[str, float], tokens: int = 10
) -> Path:
    """A decoding with the total seconds of each utterance; returns its folder."""
    folder = exp_dir / tag / test_set
    folder.mkdir(parents=True)
    utterances = {
        key: DecodingStatistics(
            decoder_calls=tokens, tokens=tokens, total_seconds=value, decoder_seconds=value / 2
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
