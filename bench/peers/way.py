"""The ways of decoding that are compared."""

from dataclasses import dataclass

GREEDY, BEAM5 = "greedy", "beam 5"
BEAM_SIZES = {GREEDY: 1, BEAM5: 5}
# Who drafts, as the decode option ``drafter`` names them.
HEADS, CTC, CTC_HEADS, MODEL = "heads", "ctc", "ctc+heads", "model"
DRAFTERS = (HEADS, CTC, CTC_HEADS, MODEL)
PLAIN, REPLAYED = "", "replayed"
DRAFTS = {
    HEADS: "drafts by heads",
    CTC: "drafts by CTC",
    CTC_HEADS: "drafts by CTC + heads",
    MODEL: "drafts by the draft model",
    REPLAYED: "drafts replayed",
}


@dataclass(frozen=True)
class Way:
    """One row of the comparison.

    Attributes:
        contestant: A name in ``contestant.CONTESTANTS``.
        weights: float32, bfloat16, float16 or int8.
        search: ``GREEDY`` or ``BEAM5``.
        batch_size: Inputs decoded together.
        drafts: Of ours: ``PLAIN``, one of ``DRAFTERS``, or ``REPLAYED`` (by heads, of a stated
            acceptance).
        tokens_per_call: Stated acceptance of ``REPLAYED``; 0: the measured counts.
    """

    contestant: str
    weights: str
    search: str
    batch_size: int = 1
    drafts: str = PLAIN
    tokens_per_call: float = 0.0

    @property
    def beam_size(self) -> int:
        """Hypotheses; 1: greedy."""
        return BEAM_SIZES[self.search]

    @property
    def process(self) -> tuple[str, str]:
        """Ways of one contestant and type of weights share a process while times are measured."""
        return self.contestant, self.weights

    @property
    def label(self) -> str:
        """For tables."""
        if self.drafts == PLAIN:
            return self.contestant
        stated = f" at {self.tokens_per_call:g} tokens a call" if self.tokens_per_call else ""
        return f"{self.contestant}, {DRAFTS[self.drafts]}{stated}"
