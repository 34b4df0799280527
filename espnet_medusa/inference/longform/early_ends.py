"""Texts without timestamps that end before the speech does.

Without timestamps, Whisper sometimes ends after a sentence although speech follows. The most
probable timestamp after the text is the time where it ends; the next window begins there.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from espnet_medusa.data.audio.voice_activity import MARGIN_S
from espnet_medusa.inference.longform.recording import Passage, Row
from espnet_medusa.inference.longform.window import Window, WindowDecoding

# Minimum speech after the text. Whisper's timestamps are often full seconds, and therefore
# earlier than the end of the text by up to 1 s.
LACKING_S = 1.3
SHORTEST_S = 0.5  # minimum duration of the text
# Minimum mean log-probability of a text. Less probable ones are often wrong everywhere. They only
# lack speech after a pause of LONG_PAUSE_S, or the share MOST of all speech.
PROBABLE = -0.5
LEAST_PROBABLE, MOST = -1.0, 0.7  # minimum log-probability of a text that lacks this share
LONG_PAUSE_S = 1.5  # without the pause's margins
REPEATED = 4  # minimum tokens of a text that counts as a repetition of the text before


def find_early_ends(
    windows: Sequence[tuple[Passage, Window]],
    decodings: Sequence[WindowDecoding],
    text_ends_s: Callable[[Sequence[Row], Sequence[Sequence[int]]], Sequence[float]],
) -> list[WindowDecoding]:
    """Set ``ends_early_s`` of texts without timestamps that lack the speech at the end.

    A text that only repeats the end of the text before becomes empty: the earlier text did not end
    early, its time was wrong.
    """
    found = [*decodings]
    untimed = [row for row, (passage, _) in enumerate(windows) if not passage.recording.timestamps]
    for row in untimed:
        if _repeats(windows[row][0], found[row]):
            found[row] = replace(found[row], tokens=(), text="")
    rows = [
        row
        for row in untimed
        if found[row].tokens
        and _lacking_s(*windows[row], found[row], 0.0) >= SHORTEST_S + LACKING_S
    ]
    if not rows:
        return found
    inputs, texts = [windows[row][0].row(row) for row in rows], [found[row].tokens for row in rows]
    ends_s = text_ends_s(inputs, texts)
    for row, end_s in zip(rows, ends_s, strict=True):
        lacking_s = _lacking_s(*windows[row], found[row], end_s)
        if end_s >= SHORTEST_S and lacking_s >= LACKING_S:
            found[row] = replace(found[row], ends_early_s=end_s)
    return found


def _repeats(passage: Passage, decoding: WindowDecoding) -> bool:
    """Return whether a text is the end of the text before it in the same clip."""
    clip_start, _ = passage.window.clips[0]
    before = [segment.text for segment in passage.segments if segment.seek >= clip_start]
    if not before or len(decoding.tokens) < REPEATED:
        return False
    texts = before[-1], decoding.text
    earlier, text = ("".join(filter(str.isalnum, text.casefold())) for text in texts)
    return text != "" and earlier.endswith(text)


def _lacking_s(passage: Passage, window: Window, decoding: WindowDecoding, end_s: float) -> float:
    """Return the speech that a text lacks if it ends ``end_s`` after the start of the window."""
    speech, log_probability = passage.recording.speech, decoding.average_log_probability
    lacking_s = speech.speech_s(window.start_s + end_s, window.end_s)
    most_s = MOST * speech.speech_s(window.start_s, window.end_s)
    lacks_most = log_probability >= LEAST_PROBABLE and lacking_s >= most_s
    if log_probability >= PROBABLE or lacks_most:
        return lacking_s
    pauses = speech.pauses(window.start_s, window.end_s)
    long = [end for start, end in pauses if end - start >= LONG_PAUSE_S]
    later = [end for end in long if end + MARGIN_S >= end_s]
    return speech.speech_s(window.start_s + later[0], window.end_s) if later else 0.0
