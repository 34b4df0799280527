"""Run our beam search through ESPnet's ``BeamSearch`` call, for s2t and st."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from espnet_medusa.data.threads import PerThread
from espnet_medusa.decoding.search.drafters import DraftSources
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions
from espnet_medusa.decoding.search.state import SearchState
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.decoding.tree.proposer import DraftInput, Proposer
from espnet_medusa.inference.choose_search import build_search, unsupported_beam
from espnet_medusa.inference.decoding import espnet_hypothesis
from espnet_medusa.networks.espnet_compat import BeamSearch, Hypothesis
from espnet_medusa.networks.espnet_transformer import searchable, unknown_part

logger = logging.getLogger(__name__)


def search_like(
    espnet: BeamSearch | None,
    decoder: torch.nn.Module,
    ctc: torch.nn.Module | None,
    options: SearchOptions,
    nbest: int,
    full: Mapping[str, Any],
    open_draft_model: Callable[[], Proposer] | None = None,
    times: range = range(0),
) -> Search | None:
    """Return our search, or log why ESPnet's search must decode and return None.

    ``ctc`` is ESPnet's CTC module, which may draft, or None. ``open_draft_model`` returns the
    proposer of a draft model; None: there is no draft model. ``times``: ids of timestamps.
    """
    reason = unknown_part(decoder) or unsupported_beam(espnet)
    if reason is not None:
        logger.warning(f"ESPnet's own search decodes, without drafts; the reason: {reason}")
        return None
    sources = espnet_sources(decoder, ctc, open_draft_model)
    return build_search(options, decoder, espnet, full, sources, nbest, times)


def espnet_sources(
    decoder: torch.nn.Module,
    ctc: torch.nn.Module | None,
    open_draft_model: Callable[[], Proposer] | None = None,
) -> DraftSources:
    """Return the sources of drafts other than heads; arguments as for ``search_like``."""
    log_softmax, blank = None if ctc is None else ctc.log_softmax, 0  # ESPnet's blank
    vocabulary = searchable(decoder).draft_vocabulary
    return DraftSources(log_softmax, blank, open_draft_model, vocabulary)


def pad_inputs(
    encoder_outs: Sequence[torch.Tensor], prompts: Sequence[list[int]]
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return encoder output (U, S, D), lengths (U,) and prompts of U utterances."""
    device = encoder_outs[0].device
    return (
        torch.nn.utils.rnn.pad_sequence([*encoder_outs], batch_first=True),
        torch.tensor([len(encoder_out) for encoder_out in encoder_outs], device=device),
        [torch.tensor(prompt, device=device) for prompt in prompts],
    )


class SearchInESPnet:
    """A search with the call and the return value of ESPnet's ``BeamSearch``.

    Attributes:
        prompt: For the thread's next call; ESPnet sets it.
        statistics: Of the thread's last call.
    """

    prompt = PerThread(lambda search: search.first_prompt)
    statistics = PerThread(lambda search: DecodingStatistics())

    def __init__(self, espnet: BeamSearch, search: Search):
        self.nn_dict, self.token_list = espnet.nn_dict, espnet.token_list  # used by ESPnet
        self.search = search
        self.first_prompt: list[int] = getattr(espnet, "hyp_primer", None) or [espnet.sos]

    def set_hyp_primer(self, prompt: list[int]) -> None:
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
        encoder_outs: Sequence[torch.Tensor],
        prompts: Sequence[list[int]],
        limits: LengthLimits,
        draft_inputs: Sequence[DraftInput] | None = None,
        draft_texts: Sequence[list[int] | None] | None = None,
    ) -> list[SearchState]:
        """Decode U utterances, each with encoder output (S, D), together."""
        parts = *pad_inputs(encoder_outs, prompts), limits, draft_inputs
        return self.search(*parts, draft_texts=draft_texts)

    def hypotheses(self, state: SearchState, prompt: list[int]) -> list[Hypothesis]:
        names = self.search.strategy.scoring.names
        if state.n_best:  # ESPnet's calculate_rtf reads this line
            best = state.n_best[0].tokens[:-1]
            logger.info("best hypo: " + "".join(self.token_list[token] for token in best))
        return [espnet_hypothesis(ended, prompt, names) for ended in state.n_best]
