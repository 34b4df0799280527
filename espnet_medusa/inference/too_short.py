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


def is_too_short(error: object) -> bool:
    """Return whether an error means that audio is too short for the encoder."""
    if type(error).__name__ == ESPNETS_ERROR:
        return True
    return isinstance(error, RuntimeError) and TORCHS_MESSAGES.search(str(error)) is not None
