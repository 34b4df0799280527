"""Texts without timestamps that end before the speech does.

Without timestamps, Whisper sometimes ends after a sentence although speech follows. The most
probable timestamp after the text is the time where it ends; the next window begins there.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from espnet_medusa.longform.recording import Passage
from espnet_medusa.longform.window import Window, WindowDecoding

# Minimum speech after the text. Whisper's timestamps are often full seconds, and therefore
# earlier than the end of the text by up to 1 s.
LACKING_S = 1.3
SHORTEST_S = 0.5  # minimum duration of the text
PROBABLE = -0.5  # minimum mean log-probability of the text; lower ones are often wrong everywhere

# Rows of a batch, prompts, languages and texts to the ends of the texts, as
# ``WindowDecoder.text_ends_s``.
TextEnds = Callable[
    [Sequence[int], Sequence[Sequence[int]], Sequence[str | None], Sequence[Sequence[int]]],
    Sequence[float],
]


def find_early_ends(
    windows: Sequence[tuple[Passage, Window]],
    decodings: Sequence[WindowDecoding],
    text_ends_s: TextEnds,
) -> list[WindowDecoding]:
    """Set ``ends_early_s`` of texts without timestamps that lack the speech at the end."""
    found = [*decodings]
    rows = [
        row
        for row, (passage, window) in enumerate(windows)
        if not passage.recording.timestamps
        and found[row].tokens
        and found[row].average_log_probability >= PROBABLE
        and _speech_s(passage, window.start_s, window) >= SHORTEST_S + LACKING_S
    ]
    if not rows:
        return found
    passages = [windows[row][0] for row in rows]
    prompts = [passage.window.history.prompt() for passage in passages]
    languages = [passage.recording.language for passage in passages]
    ends_s = text_ends_s(rows, prompts, languages, [found[row].tokens for row in rows])
    for row, passage, end_s in zip(rows, passages, ends_s, strict=True):
        window = windows[row][1]
        lacking_s = _speech_s(passage, window.start_s + end_s, window)
        if end_s >= SHORTEST_S and lacking_s >= LACKING_S:
            found[row] = replace(found[row], ends_early_s=end_s)
    return found


def _speech_s(passage: Passage, start_s: float, window: Window) -> float:
    return passage.recording.speech.speech_s(start_s, window.end_s)
