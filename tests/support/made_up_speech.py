"""Made-up results of voice activity detection."""

import numpy as np

from espnet_medusa.data.audio.voice_activity import SpeechActivity

FRAMES_PER_S = 1 / 0.032


def activity(*spans_s: tuple[float, float], seconds: float = 60.0) -> SpeechActivity:
    """Return speech in spans (start, end), and none in the rest of a recording."""
    probabilities = np.full(round(seconds * FRAMES_PER_S), 0.01, np.float32)
    for start_s, end_s in spans_s:
        probabilities[round(start_s * FRAMES_PER_S) : round(end_s * FRAMES_PER_S)] = 0.9
    return SpeechActivity(probabilities, round(seconds * 16000))
