"""ESPnet's search classes and parts of its transformer, imported from where each version has them.

ESPnet 202511 has them in ``espnet.nets``, ESPnet 202611 in ``espnet2.legacy.nets``. The latter is
tried first: next to a checkout, an ``espnet`` of 202511 may be installed.
"""

try:
    from espnet2.legacy.nets.batch_beam_search import BatchBeamSearch
    from espnet2.legacy.nets.beam_search import BeamSearch, Hypothesis
    from espnet2.legacy.nets.pytorch_backend.transformer.add_sos_eos import add_sos_eos
    from espnet2.legacy.nets.pytorch_backend.transformer.attention import MultiHeadedAttention
    from espnet2.legacy.nets.pytorch_backend.transformer.decoder_layer import DecoderLayer
    from espnet2.legacy.nets.pytorch_backend.transformer.embedding import (
        LearnableFourierPosEnc,
        PositionalEncoding,
        ScaledPositionalEncoding,
    )
    from espnet2.legacy.nets.pytorch_backend.transformer.layer_norm import LayerNorm
    from espnet2.legacy.nets.pytorch_backend.transformer.positionwise_feed_forward import (
        PositionwiseFeedForward,
    )
    from espnet2.legacy.nets.pytorch_backend.transformer.repeat import MultiSequential
    from espnet2.legacy.nets.scorer_interface import BatchScorerInterface
    from espnet2.legacy.nets.scorers.ctc import CTCPrefixScorer
    from espnet2.legacy.nets.scorers.length_bonus import LengthBonus
except ImportError:
    from espnet.nets.batch_beam_search import BatchBeamSearch
    from espnet.nets.beam_search import BeamSearch, Hypothesis
    from espnet.nets.pytorch_backend.transformer.add_sos_eos import add_sos_eos
    from espnet.nets.pytorch_backend.transformer.attention import MultiHeadedAttention
    from espnet.nets.pytorch_backend.transformer.decoder_layer import DecoderLayer
    from espnet.nets.pytorch_backend.transformer.embedding import (
        LearnableFourierPosEnc,
        PositionalEncoding,
        ScaledPositionalEncoding,
    )
    from espnet.nets.pytorch_backend.transformer.layer_norm import LayerNorm
    from espnet.nets.pytorch_backend.transformer.positionwise_feed_forward import (
        PositionwiseFeedForward,
    )
    from espnet.nets.pytorch_backend.transformer.repeat import MultiSequential
    from espnet.nets.scorer_interface import BatchScorerInterface
    from espnet.nets.scorers.ctc import CTCPrefixScorer
    from espnet.nets.scorers.length_bonus import LengthBonus

__all__ = [
    "BatchBeamSearch",
    "BatchScorerInterface",
    "BeamSearch",
    "CTCPrefixScorer",
    "DecoderLayer",
    "Hypothesis",
    "LayerNorm",
    "LearnableFourierPosEnc",
    "LengthBonus",
    "MultiHeadedAttention",
    "MultiSequential",
    "PositionalEncoding",
    "PositionwiseFeedForward",
    "ScaledPositionalEncoding",
    "add_sos_eos",
]
