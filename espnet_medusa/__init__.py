"""Multi-token Whisper decoding for ESPnet2.

Importing this package enables ``encoder: hf_whisper``, ``decoder: whisper_medusa``,
``speech_llama`` and ``transformer_medusa``, and ``model: medusa`` in ESPnet's asr commands of this
process; in its s2t commands ``decoder: transformer_medusa`` and ``model: medusa``.

Dimensions in docstrings:
    B  utterances of a training batch        U  utterances decoded together (ragged)
    T  new nodes of one decoder call         N  nodes that the cache holds
    P  prompt tokens                         S  encoder frames
    L  text tokens                           K  Medusa heads
    D  hidden size                           V  vocabulary size
"""

from importlib import import_module

from espnet_medusa.decoding.runtime.process import shorten_openmp_spin
from espnet_medusa.espnet.registration import REGISTRATIONS
from espnet_medusa.espnet.upstream.hooks import install_changes, make_imports_quiet
from espnet_medusa.espnet.upstream.quiet import LOADERS

install_changes(REGISTRATIONS)

__version__ = "0.1.0"


# Importing ESPnet takes seconds: do it only for decoding.
_MODULES = {"Speech2Text": "inference.speech2text", "transcribe": "transcription.transcribe"}


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module 'espnet_medusa' has no attribute '{name}'")
    shorten_openmp_spin()  # effective if the program has not imported torch
    make_imports_quiet(LOADERS)  # effective for modules that it has not imported
    return getattr(import_module(f"espnet_medusa.{_MODULES[name]}"), name)


__all__ = ["Speech2Text", "__version__", "transcribe"]
