"""Multi-token Whisper decoding for ESPnet2.

Dimensions that docstrings name:
    B  utterances of a training batch        U  utterances that decode together (ragged)
    T  new nodes of one decoder call         N  nodes that the cache holds
    P  prompt tokens                         S  encoder frames (memory)
    L  text tokens                           K  Medusa heads
    D  hidden size                           V  vocabulary size
"""

__version__ = "0.1.0"


def register() -> None:
    """Add the plugin's classes to ESPnet's choice tables."""
