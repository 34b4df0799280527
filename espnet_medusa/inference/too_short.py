"""Recognize errors of encoders and frontends whose audio is too short."""

import re

# Both of ESPnet's classes; their module differs between ESPnet's encoders.
ESPNETS_ERROR = "TooShortUttError"
# Torch's messages: the reflection of an STFT, a convolution, and an LSTM without a frame.
TORCHS_MESSAGES = re.compile(
    "Padding size should be less than the corresponding input dimension"
    "|Kernel size can't be greater than actual input size"
    "|Length of all samples has to be greater than 0"
)


LONGEST_S = 1.0  # with longer audio, torch's messages have another cause


def is_too_short(error: object, audio_s: float) -> bool:
    """Return whether an error means that audio is too short for the encoder."""
    if type(error).__name__ == ESPNETS_ERROR:
        return True
    if audio_s > LONGEST_S:
        return False
    return isinstance(error, RuntimeError) and TORCHS_MESSAGES.search(str(error)) is not None
