"""The one place that knows where ESPnet keeps its search classes.

ESPnet 202511 has them in ``espnet.nets``; its master moves them to ``espnet2.legacy.nets``.
"""

try:
    from espnet.nets.batch_beam_search import BatchBeamSearch
    from espnet.nets.beam_search import BeamSearch, Hypothesis
    from espnet.nets.pytorch_backend.transformer.add_sos_eos import add_sos_eos
    from espnet.nets.scorer_interface import BatchScorerInterface
    from espnet.nets.scorers.ctc import CTCPrefixScorer
    from espnet.nets.scorers.length_bonus import LengthBonus
except ImportError:
    from espnet2.legacy.nets.batch_beam_search import BatchBeamSearch
    from espnet2.legacy.nets.beam_search import BeamSearch, Hypothesis
    from espnet2.legacy.nets.pytorch_backend.transformer.add_sos_eos import add_sos_eos
    from espnet2.legacy.nets.scorer_interface import BatchScorerInterface
    from espnet2.legacy.nets.scorers.ctc import CTCPrefixScorer
    from espnet2.legacy.nets.scorers.length_bonus import LengthBonus

__all__ = [
    "BatchBeamSearch",
    "BatchScorerInterface",
    "BeamSearch",
    "CTCPrefixScorer",
    "Hypothesis",
    "LengthBonus",
    "add_sos_eos",
]
