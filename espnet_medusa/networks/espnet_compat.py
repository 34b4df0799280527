"""ESPnet's search classes and parts of its transformer, for all ESPnet versions.

They are in ``espnet.nets`` in ESPnet 202511, in ``espnet2.legacy.nets`` in 202611. The newer one
is tried first, because an ``espnet`` of 202511 may be installed next to a newer ``espnet2``.
"""

from importlib import import_module
from importlib.metadata import version
from inspect import signature
from typing import Any

try:
    import espnet2.legacy.nets as nets
except ImportError:
    import espnet.nets as nets

_LAYERS = "pytorch_backend.transformer"


def _load(module: str, name: str) -> Any:
    return getattr(import_module(f"{nets.__name__}.{module}"), name)


BatchBeamSearch = _load("batch_beam_search", "BatchBeamSearch")
BatchScorerInterface = _load("scorer_interface", "BatchScorerInterface")
BeamSearch = _load("beam_search", "BeamSearch")
CTCPrefixScorer = _load("scorers.ctc", "CTCPrefixScorer")
DecoderLayer = _load(f"{_LAYERS}.decoder_layer", "DecoderLayer")
Hypothesis = _load("beam_search", "Hypothesis")
LayerNorm = _load(f"{_LAYERS}.layer_norm", "LayerNorm")
LearnableFourierPosEnc = _load(f"{_LAYERS}.embedding", "LearnableFourierPosEnc")
LengthBonus = _load("scorers.length_bonus", "LengthBonus")
MultiHeadedAttention = _load(f"{_LAYERS}.attention", "MultiHeadedAttention")
MultiSequential = _load(f"{_LAYERS}.repeat", "MultiSequential")
PositionalEncoding = _load(f"{_LAYERS}.embedding", "PositionalEncoding")
PositionwiseFeedForward = _load(f"{_LAYERS}.positionwise_feed_forward", "PositionwiseFeedForward")
ScaledPositionalEncoding = _load(f"{_LAYERS}.embedding", "ScaledPositionalEncoding")
# Whether beam search counts prompt tokens as output: ``search.scores.Scorers``.
PROMPT_COUNTS = not hasattr(BeamSearch, "_primer_length")
# Whether CTC can score over a window of frames: ``CTCPrefixScorer(..., window_margin)``.
HAS_CTC_WINDOW = "window_margin" in signature(CTCPrefixScorer.__init__).parameters
# ESPnet 202610's window is shorter in silences.
SAME_CTC_WINDOW = HAS_CTC_WINDOW and version("espnet") >= "202611"
add_sos_eos = _load(f"{_LAYERS}.add_sos_eos", "add_sos_eos")
