"""Multi-token Whisper decoding for ESPnet2.

Importing this package enables ``encoder: hf_whisper``, ``decoder: whisper_medusa``,
``speech_llama`` and ``transformer_medusa``, and ``model: medusa`` in ESPnet's asr commands of this
process; in its s2t commands ``decoder: transformer_medusa`` and ``model: medusa``.

Dimensions in docstrings:
    B  utterances of a training batch        U  utterances decoded together (ragged)
    T  new nodes of one decoder call         N  nodes that the cache holds
    P  prompt tokens                         S  encoder frames (memory)
    L  text tokens                           K  Medusa heads
    D  hidden size                           V  vocabulary size
"""

from espnet_medusa.plugin import REGISTRATIONS
from espnet_medusa.upstream.hooks import install_changes

install_changes(REGISTRATIONS)

__version__ = "0.1.0"


def __getattr__(name: str):
    # Importing ESPnet takes seconds: do it only for decoding.
    if name == "Speech2Text":
        from espnet_medusa.inference.speech2text import Speech2Text

        return Speech2Text
    if name == "transcribe":
        from espnet_medusa.transcription.transcribe import transcribe

        return transcribe
    raise AttributeError(f"module 'espnet_medusa' has no attribute '{name}'")


__all__ = ["Speech2Text", "__version__", "transcribe"]
