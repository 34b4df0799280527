"""Eta of a scored test set: decoder calls over the words that scoring left."""

from collections.abc import Container
from pathlib import Path

from espnet_medusa.kaldi.table import read_results
from espnet_medusa.scoring.trn import list_some, read_trn
from espnet_medusa.search.statistics import add_eta


def words_by_utterance(trn: Path, ids: Container[str]) -> dict[str, int]:
    """Words of each line of a trn file, by utterance; by the line's label where none is known.

    Args:
        trn: The file; its labels are `<speaker>-<utterance>`, and both may hold hyphens.
        ids: Those of the utterances.
    """
    words: dict[str, int] = {}
    for line in read_trn(trn):
        parts = line.id.split("-")
        endings = ["-".join(parts[start:]) for start in range(1, len(parts))]
        known = (key for key in endings if key in ids and key not in words)
        words[next(known, line.id)] = len(line.tokens)
    return words


def add_scored_eta(folder: Path) -> None:
    """Add eta to the statistics of a scored test set.

    Args:
        folder: Holds text, statistics.json and score_wer/{ref,hyp}.trn.

    Raises:
        ValueError: Texts and scores are not of the same utterances.
    """
    decoded = read_results(folder / "text")
    reference, hypothesis = (folder / "score_wer" / name for name in ("ref.trn", "hyp.trn"))
    words = [words_by_utterance(path, decoded) for path in (reference, hypothesis)]
    for path, known in zip((reference, hypothesis), words, strict=True):
        missing = decoded.keys() - known.keys()
        if missing:
            names = list_some(sorted(missing))
            raise ValueError(f"{path}: no line of {names}; score again (stage 13)")
    # ESPnet's own stage pairs texts and ids by line number, so that a text which is missing moves
    # all that follow to the wrong references.
    moved = [key for key in words[1] if key not in decoded and words[1][key]]
    if moved:
        raise ValueError(
            f"{hypothesis}: has words of {list_some(moved)}, without a line in {folder / 'text'}: "
            "hypotheses stand beside other utterances' references; decode what failed, or take it "
            "out of the test set, then score again (stage 13)"
        )
    add_eta(folder / "statistics.json", *words)
