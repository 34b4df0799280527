"""The ways of searching that `drafting.py` compares."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.model.heads import Heads, RecurrentHeads

PLAIN = "plain"
DEEP = 15  # steps that recurrent heads run ahead, beyond those they were trained for
CHOICES = (3, 2, 1, 1)  # aiola's medusa_choices without the root


@dataclass(frozen=True)
class Search:
    """A search; ``beam_size`` 0 is greedy."""

    name: str
    beam_size: int = 0
    ctc_weight: float = 0.0


SEARCHES = {
    "greedy": Search("greedy"),
    "beam5": Search("beam 5", 5),
    "beam5_ctc0.3": Search("beam 5, CTC 0.3", 5, 0.3),
    "beam10": Search("beam 10", 10),
    "beam10_ctc0.3": Search("beam 10, CTC 0.3", 10, 0.3),
}


@dataclass(frozen=True)
class Setting:
    """One way of searching.

    Attributes:
        search: What is searched for.
        heads: What drafts; ``PLAIN``: nothing.
        depth: Steps drafted ahead.
        width: Hypotheses of the drafted beam; 0 where it is not used.
        choices: Fixed tree instead.
        left_out: Scorers that drafting does not ask.
        batch_size: Utterances searched together.
    """

    search: Search
    heads: str = PLAIN
    depth: int = 0
    width: int = 0
    choices: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    batch_size: int = 1

    @property
    def drafts(self) -> str:
        """The drafts' shape in words."""
        if self.heads == PLAIN:
            return "-"
        if self.choices:
            return f"tree {[1, *self.choices]}"
        shape = "chain" if self.width == 1 else f"width {self.width}"
        without = "".join(f", {name.upper()} left out of the drafts" for name in self.left_out)
        return f"{shape}, {self.depth} steps{without}"


def make_settings(
    searches: Iterable[str], models: Mapping[str, Speech2Text], batch_size: int
) -> list[Setting]:
    """All of them, those of one search together, the plain one first.

    Args:
        searches: Names in ``SEARCHES``.
        models: By head type.
        batch_size: Of those that are also measured in batches: plain, and each head type with the
            decode options' defaults (a chain for greedy search, else as wide as the beam).
    """
    settings = []
    for search in (SEARCHES[name] for name in searches):
        singles, batched = [Setting(search)], [Setting(search)]
        for heads, model in models.items():
            drafts = _drafts(search, heads, model.asr_model.decoder.heads)
            singles += drafts
            batched.append(drafts[0 if search.beam_size == 0 else 1])
        settings += singles
        if batch_size > 1:
            settings += [replace(setting, batch_size=batch_size) for setting in batched]
    return settings


def _drafts(search: Search, heads: str, module: Heads) -> list[Setting]:
    own = search.beam_size or 2
    chain, *wide = [Setting(search, heads, module.num_heads, width) for width in (1, own, 2 * own)]
    drafts = [chain, *wide]
    if isinstance(module, RecurrentHeads):
        # A chain serves one hypothesis: for beams its length makes no difference.
        drafts += [replace(one, depth=DEEP) for one in (wide if search.beam_size else drafts)]
    if search.beam_size == 0 and heads == "block":
        drafts.append(Setting(search, heads, len(CHOICES), choices=CHOICES))
    if search == SEARCHES["beam5_ctc0.3"]:
        drafts.append(replace(wide[0], left_out=("ctc",)))
    return drafts
