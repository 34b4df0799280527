"""Configurations that are compared: contestant, weights, search, batch size and drafter."""

from dataclasses import dataclass

FLOAT32, BFLOAT16, FLOAT16, INT8 = "float32", "bfloat16", "float16", "int8"
GREEDY, BEAM5 = "greedy", "beam 5"
# Searches of a program: its defaults, without and with voice activity detection.
DEFAULTS, DEFAULTS_VAD = "defaults", "defaults, --vad_filter"
BEAM_SIZES = {GREEDY: 1, BEAM5: 5, DEFAULTS: 5, DEFAULTS_VAD: 5}
OURS = "ours"
# Values of the decode option ``drafter``.
HEADS, CTC, CTC_HEADS, MODEL = "heads", "ctc", "ctc+heads", "model"
AUTO = "auto"  # of the decode option ``lookahead``
DRAFTERS = (HEADS, CTC, CTC_HEADS, MODEL)
BASELINE = ""
DRAFTS = {
    HEADS: "drafts by heads",
    CTC: "drafts by CTC",
    CTC_HEADS: "drafts by CTC + heads",
    MODEL: "drafts by the draft model",
    AUTO: "automatic drafts",
}


@dataclass(frozen=True)
class Way:
    """One row of a table."""

    contestant: str  # a name in ``base.CONTESTANTS``, or the name of a plan's drafter
    weights: str  # float32, bfloat16, float16 or int8; empty for a plan's drafter
    search: str  # a key of ``BEAM_SIZES``, or the name of a plan's search
    batch_size: int = 1  # inputs (of long recordings: windows) decoded together
    drafts: str = BASELINE  # of ours: ``BASELINE`` or one of ``DRAFTERS``
    made_with: str = ""  # weights and options of a plan's drafter, which the journal compares

    @property
    def beam_size(self) -> int:
        """Number of hypotheses; 1: greedy."""
        return BEAM_SIZES[self.search]

    @property
    def by_default(self) -> bool:
        """Whether the program runs with its own defaults."""
        return self.search in (DEFAULTS, DEFAULTS_VAD)

    @property
    def process(self) -> tuple[str, str]:
        """Key of the process that decodes it."""
        return self.contestant, self.weights

    @property
    def label(self) -> str:
        """Contestant and drafts in words."""
        return ", ".join(filter(None, [self.contestant, DRAFTS.get(self.drafts)]))
