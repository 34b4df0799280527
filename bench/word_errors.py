"""Word errors behind a text cleaner, Whisper's normalizer unless another one is named."""

from collections.abc import Sequence

from espnet_medusa.recipe.tokens import make_cleaner
from espnet_medusa.scoring.alignment import align_pairs
from espnet_medusa.scoring.sclite import Counts

WHISPER_CLEANER = "whisper_en"


def word_errors(
    references: Sequence[str], texts: Sequence[str], cleaner: str = WHISPER_CLEANER
) -> list[Counts]:
    """Counts of each of N utterances.

    Args:
        references: N texts.
        texts: N texts of the model.
        cleaner: ESPnet's name of what both go through, or ``none``.

    Raises:
        ValueError: ESPnet has no such cleaner.
    """
    clean = make_cleaner(cleaner)
    pairs = [
        (clean(reference).split(), clean(text).split())
        for reference, text in zip(references, texts, strict=True)
    ]
    return [Counts.of_operations(operations) for operations in align_pairs(pairs)]
