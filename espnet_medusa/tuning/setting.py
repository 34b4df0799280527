"""The settings of drafts."""

from dataclasses import dataclass

from espnet_medusa.search.options import FIXED


@dataclass(frozen=True)
class DraftSetting:
    """A drafter and the shape of its drafts."""

    drafter: str  # name of the drafter
    depth: int  # Draft steps, the most of them with a lookahead; 0: no drafts
    width: int = 1  # Drafted hypotheses
    # Most nodes of an utterance in a decoder call; None: the decode option's default.
    budget: int | None = None
    lookahead: str = FIXED  # the decode option ``lookahead``
    # The decode option ``ctc_draft_share``; None for drafters that are not a mixture.
    share: float | None = None

    def options(self) -> dict[str, int | float | str | None]:
        """Return the keys of a decode config, without those of the drafter."""
        if self.depth == 0:
            return {"draft_depth": 0}
        return {
            **({} if self.share is None else {"ctc_draft_share": self.share}),
            "lookahead": self.lookahead,
            "draft_depth": self.depth,
            "draft_width": self.width,
            "draft_budget": self.budget,
        }

    @property
    def shape(self) -> str:
        """All but the drafter, in words."""
        if self.depth == 0:
            return "-"
        parts = [f"depth {self.depth}", f"width {self.width}"]
        if self.lookahead != FIXED:
            parts[0] = f"lookahead {self.lookahead} to {self.depth}"
        if self.budget is not None:
            parts.append(f"budget {self.budget}")
        if self.share is not None:
            parts.append(f"share {self.share:g}")
        return ", ".join(parts)

    def __str__(self) -> str:
        return self.drafter if self.depth == 0 else f"{self.drafter}, {self.shape}"


NO_DRAFTS = DraftSetting("no drafts", 0)
