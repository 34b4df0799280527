"""Our beam search in the place of the one in ESPnet's ``Speech2Text`` classes of other tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.inference.choose_search import unsupported_beam
from espnet_medusa.model.espnet_transformer import searchable, unknown_part
from espnet_medusa.options import build_options, check_at_least
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.build import SearchModel, build_beam
from espnet_medusa.search.drafters import DraftSources
from espnet_medusa.search.options import GREEDY, LengthLimits, SearchOptions, check_options
from espnet_medusa.search.scores import Scorers
from espnet_medusa.search.search import Search
from espnet_medusa.search.state import SearchState
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.tree.proposer import DraftInput, Proposer
from espnet_medusa.upstream.compat import PROMPT_COUNTS, BeamSearch, Hypothesis

logger = logging.getLogger(__name__)
Options = TypeVar("Options", bound=SearchOptions)


def split_options(
    options: dict[str, Any], names: Mapping[str, Any], task: str, kind: type[Options]
) -> tuple[Options, int]:
    """Remove our options (``kind``) from ESPnet's (``names``); return them and the batch size.

    Raise InputError if one is not usable with this task.
    """
    ours = {name: options.pop(name) for name in [*options] if name not in names}
    batch_size = options.pop("batch_size", 1)
    check_at_least(batch_size, 1, "batch_size")
    search = build_options(kind, ours, "decode config")
    check_options(search, options.get("beam_size", 20))
    if search.search == GREEDY:
        raise InputError(f"search: {GREEDY}; allowed with {task}: beam, with beam_size: 1")
    return search, batch_size


def search_like(
    espnet: BeamSearch | None,
    decoder: torch.nn.Module,
    ctc: torch.nn.Module | None,
    options: SearchOptions,
    nbest: int,
    full: Mapping[str, Any],
    open_draft_model: Callable[[], Proposer] | None = None,
) -> Search | None:
    """Build a search with the scorers of ESPnet's; None: ESPnet's has to decode, for a reason.

    Args:
        decoder: The model's decoder.
        ctc: ESPnet's CTC module, which may draft; None: there is none.
        full: ESPnet's scorers over the whole vocabulary, without the decoder, or replacements.
        open_draft_model: Returns the proposer of a draft model; None: there is none.

    Raises:
        InputError: The model does not support the options.
    """
    reason = unknown_part(decoder) or unsupported_beam(espnet)
    if reason is not None:
        logger.warning(f"ESPnet's own search decodes, without drafts; the reason: {reason}")
        return None
    log_softmax = None if ctc is None else ctc.log_softmax
    scoring, decoder = log_softmax if "ctc" in espnet.part_scorers else None, searchable(decoder)
    blank = 0  # ESPnet's
    parts = SearchModel(
        build_runtime(decoder, options.decoder_precision),
        *(len(espnet.token_list), espnet.eos, next(decoder.parameters()).device),
        Scorers(espnet.weights, full, scoring, PROMPT_COUNTS),
        DraftSources(log_softmax, blank, open_draft_model, decoder.draft_vocabulary),
    )
    return build_beam(options, parts, espnet.beam_size, espnet.normalize_length, nbest)


class SearchInESPnet:
    """A search with the call and the return value of ESPnet's ``BeamSearch``."""

    def __init__(self, espnet: BeamSearch, search: Search):
        self.nn_dict, self.token_list = espnet.nn_dict, espnet.token_list  # used by ESPnet
        self.search = search
        self.prompt: list[int] = getattr(espnet, "hyp_primer", None) or [espnet.sos]
        self.statistics = DecodingStatistics()  # of the last call

    def set_hyp_primer(self, prompt: list[int]) -> None:
        """Set the prompt of the next calls."""
        self.prompt = prompt

    def __call__(
        self, x: torch.Tensor, maxlenratio: float = 0.0, minlenratio: float = 0.0
    ) -> list[Hypothesis]:
        """Return the n-best list for encoder output (S, D)."""
        states = self.decode([x], [self.prompt], LengthLimits(maxlenratio, minlenratio))
        self.statistics = states[0].statistics
        return self.hypotheses(states[0], self.prompt)

    def decode(
        self,
        memories: Sequence[torch.Tensor],
        prompts: Sequence[list[int]],
        limits: LengthLimits,
        draft_inputs: Sequence[DraftInput] | None = None,
    ) -> list[SearchState]:
        """Decode U utterances, each with encoder output (S, D), together."""
        device = memories[0].device
        return self.search(
            torch.nn.utils.rnn.pad_sequence([*memories], batch_first=True),
            torch.tensor([len(memory) for memory in memories], device=device),
            [torch.tensor(prompt, device=device) for prompt in prompts],
            limits,
            draft_inputs,
        )

    def hypotheses(self, state: SearchState, prompt: list[int]) -> list[Hypothesis]:
        """Return ESPnet's hypotheses, best first."""
        names = self.search.strategy.scoring.names
        if state.n_best:  # ESPnet's calculate_rtf reads this line
            best = state.n_best[0].tokens[:-1]
            logger.info("best hypo: " + "".join(self.token_list[token] for token in best))
        return [
            Hypothesis(
                torch.tensor([*prompt, *ended.tokens]),
                torch.tensor(ended.score),
                {name: torch.tensor(part) for name, part in zip(names, ended.parts, strict=True)},
            )
            for ended in state.n_best
        ]
