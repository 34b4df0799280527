"""Minimum word error rate training: the expected word errors of an N-best list.

The loss on N-best lists of Prabhavalkar et al., "Minimum Word Error Rate Training for
Attention-based Sequence-to-Sequence Models" (arXiv 1712.01818). As in multi-token Speech-LLaMA
(arXiv 2409.08148) a hypothesis's log-probability sums those of the heads that produced its tokens,
so that what is trained is what the search with unverified drafts adds up.

U utterances of a batch have N hypotheses at most, H in all.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from rapidfuzz.distance import Levenshtein
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from espnet_medusa.model.heads.base import CrossKeysValues
from espnet_medusa.model.multi_token_decoder import HiddenStates, MultiTokenDecoder
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.threshold_beam import ThresholdBeamSearch
from espnet_medusa.training.projection_loss import CHUNK_LOGITS

SPACES = ("<space>", "▁", "Ġ")  # ESPnet's characters, SentencePiece, bytes as letters
CONTROL_TOKEN = re.compile(r"<\|.*\|>")  # Whisper's prompt and timestamps among them
NO_HEAD = -1
SPARE_TOKENS = 10  # hypotheses may be so much longer than the longest reference of their batch


class Hypothesis(Protocol):
    """What a search has found.

    Attributes:
        tokens: Behind the prompt, the end symbol included.
        heads: Which head produced each token, 0 the base head; none for an end symbol that was
            only put behind a hypothesis of maximum length, whose score does not know it.
    """

    tokens: Sequence[int]
    heads: Sequence[int]


@dataclass(frozen=True)
class MWERObjective:
    """Word errors of what the threshold beam search finds with a decoder as it is now.

    The search's prompt is ``start`` alone. Prompt tokens of Whisper's labels are searched for, as
    the text is, and are no words.

    Attributes:
        pieces: Of ``word_pieces``.
        start: Token that texts start from.
        end: End symbol.
        beam_size: N.
        threshold: Least probability of a token that is taken from the heads.
    """

    pieces: Sequence[str]
    start: int
    end: int
    beam_size: int
    threshold: float

    def __call__(
        self,
        decoder: MultiTokenDecoder,
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        references: Sequence[Sequence[int]],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Loss and stats of a batch.

        ESPnet weighs stats by utterances when it averages batches: ``wer_*`` of an epoch are
        means of the batches' rates, not the rate of all words.

        Args:
            decoder: Searched with its weights at this moment, without dropout.
            memory: (U, S, D) encoder output; the loss's gradient reaches it, the search does not.
            memory_lengths: (U,).
            references: Tokens of U texts, without ``start`` and ``end``.

        Returns:
            ``mwer_loss``. ``mwer``: the same; ``wer_nbest``: expected word errors over the
            batch's reference words; ``wer_best``: those of the search's best hypotheses.
        """
        longest = max(map(len, references)) + SPARE_TOKENS
        n_best = self.search(decoder, memory, memory_lengths, longest)
        log_probs = hypothesis_log_probs(decoder, memory, memory_lengths, n_best, self.start)
        words = [words_of(tokens, self.pieces) for tokens in references]
        errors = [
            [count_word_errors(words_of(one.tokens, self.pieces), wanted) for one in found]
            for found, wanted in zip(n_best, words, strict=True)
        ]
        errors = _padded(errors, 0, memory.device)
        loss = mwer_loss(log_probs, errors)
        total = max(sum(map(len, words)), 1)
        stats = {
            "mwer": loss.detach(),
            "wer_nbest": expected_errors(log_probs.detach(), errors).sum() / total,
            "wer_best": errors[:, 0].sum() / total,
        }
        return loss, stats

    @torch.no_grad()
    def search(
        self,
        decoder: MultiTokenDecoder,
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        max_length: int,
    ) -> list[list[Hypothesis]]:
        """N-best lists, best first.

        Args:
            decoder: Without dropout.
            memory: (U, S, D) encoder output.
            memory_lengths: (U,).
            max_length: Most tokens, as far as the decoder has positions for them.
        """
        with torch.autocast(memory.device.type, enabled=False):
            runtime = build_runtime(decoder, lasting=False)
            search = ThresholdBeamSearch(
                runtime,
                Constraints(self.end),
                runtime.proposer(),
                self.threshold,
                self.beam_size,
                depth=decoder.num_heads,
            )
            prompt = torch.full((len(memory), 1), self.start, device=memory.device)
            limits = LengthLimits(maxlenratio=-float(max_length))
            search_states = search(memory.detach(), memory_lengths, prompt, limits)
        return [search_state.ended for search_state in search_states]


def word_pieces(token_list: Sequence[str], symbols: Collection[str]) -> list[str]:
    """What each token adds to a text.

    Spaces are the list's own; in a list without a sign for them every token is a word. Letters
    stay as the list spells them, be it bytes as other letters: a one-to-one change of letters
    leaves the number of word errors as it is.

    Args:
        token_list: V tokens.
        symbols: Tokens that are no text; those of the form ``<|...|>`` never are.
    """
    space = next((sign for sign in SPACES if any(sign in token for token in token_list)), None)
    pieces = (f" {token}" if space is None else token.replace(space, " ") for token in token_list)
    return [
        "" if token in symbols or CONTROL_TOKEN.fullmatch(token) else piece
        for token, piece in zip(token_list, pieces, strict=True)
    ]


def words_of(tokens: Sequence[int], pieces: Sequence[str]) -> list[str]:
    """Words of token ids, with the pieces of ``word_pieces``."""
    return "".join(pieces[token] for token in tokens).split()


def count_word_errors(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """Fewest words to substitute, delete and insert."""
    return Levenshtein.distance(hypothesis, reference)


def hypothesis_log_probs(
    decoder: MultiTokenDecoder,
    memory: torch.Tensor,
    memory_lengths: torch.Tensor,
    n_best: Sequence[Sequence[Hypothesis]],
    start: int,
) -> torch.Tensor:
    """Log-probabilities of hypotheses under the heads that produced their tokens.

    One teacher-forced pass, in which the hypotheses of an utterance share its memory. Head k's
    token at position t is predicted from position t - k. Only rows that a head really produced a
    token from meet the vocabulary.

    Args:
        decoder: In training mode with its dropout.
        memory: (U, S, D) encoder output.
        memory_lengths: (U,).
        n_best: Lists of U utterances, one hypothesis or more in all.
        start: Token that stands before the first one.

    Returns:
        (U, N), -inf where an utterance has fewer than N hypotheses.
    """
    device, branches = memory.device, max(map(len, n_best))
    present = torch.tensor([[n < len(found) for n in range(branches)] for found in n_best])
    filled = [[*found, *[None] * (branches - len(found))] for found in n_best]
    hypotheses = [hypothesis for found in filled for hypothesis in found]
    scored = [one.tokens[: len(one.heads)] if one else [start] for one in hypotheses]
    tokens = _padded(scored, 0, device)
    heads = _padded([one.heads if one else [NO_HEAD] for one in hypotheses], NO_HEAD, device)
    inputs = torch.nn.functional.pad(tokens[:, :-1], (1, 0), value=start)
    inputs = inputs.view(len(n_best), -1)
    outputs = decoder.hidden_states(memory, memory_lengths, inputs, branches)
    states = (part.reshape(*tokens.shape, -1) for part in outputs[:3])
    outputs = HiddenStates(*states, each_branch(outputs.cross_keys_values, branches))
    owners, log_probs = [], []
    unrolled = decoder.unroll_hidden(outputs, tokens)
    for head, (hidden, projection) in enumerate(zip(unrolled, decoder.projections, strict=True)):
        rows, positions = (heads[:, head:] == head).nonzero(as_tuple=True)
        targets = tokens[rows, positions + head]
        owners.append(rows)
        log_probs.append(_token_log_probs(hidden[rows, positions], targets, projection))
    log_probs = torch.cat(log_probs)
    summed = log_probs.new_zeros(len(hypotheses)).index_add(0, torch.cat(owners), log_probs)
    return summed.view(len(n_best), -1).masked_fill(~present.to(device), -torch.inf)


def each_branch(cross_keys_values: CrossKeysValues | None, branches: int) -> CrossKeysValues | None:
    """The same audio for each of N sequences of an utterance."""
    if cross_keys_values is None:
        return None
    return CrossKeysValues(
        *(
            None if part is None else part.repeat_interleave(branches, 0)
            for part in cross_keys_values
        )
    )


def mwer_loss(log_probs: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    """Expected word errors over each N-best list less the list's mean, averaged over utterances.

    The mean only shifts the value: probabilities of a list sum to one, so the gradient is that of
    the expected errors. An utterance with one hypothesis has nothing to choose and adds 0.

    Args:
        log_probs: (U, N), -inf where there is no hypothesis; renormalised over each list.
        errors: (U, N) word errors; any number where there is no hypothesis.

    Returns:
        Scalar; negative where the better hypotheses are the more probable ones.
    """
    present = log_probs > -torch.inf
    several = present.sum(dim=1) > 1
    errors = errors.masked_fill(~present, 0)[several].to(log_probs.dtype)
    mean = errors.sum(dim=1) / present[several].sum(dim=1)
    return (expected_errors(log_probs[several], errors) - mean).sum() / len(log_probs)


def expected_errors(log_probs: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    """Mean of errors (U, N) under the renormalised probabilities: (U,).

    Args:
        log_probs: (U, N), in each row one or more above -inf.
        errors: (U, N), finite everywhere.
    """
    return (log_probs.softmax(dim=1) * errors).sum(dim=1)


def _token_log_probs(
    hidden: torch.Tensor, targets: torch.Tensor, projection: torch.Tensor
) -> torch.Tensor:
    """Log-probabilities (n,) of tokens (n,); logits of (n, D) are made again for the gradient."""
    size = max(1, CHUNK_LOGITS // len(projection))
    chunks = zip(hidden.split(size), targets.split(size), strict=True)
    return torch.cat(
        [
            checkpoint(
                _project, rows, of, projection, use_reentrant=False, preserve_rng_state=False
            )
            for rows, of in chunks
        ]
    )


def _project(hidden: torch.Tensor, targets: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    logits = torch.nn.functional.linear(hidden, projection)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(dim=1)


def _padded(rows: Sequence[Sequence[int]], filler: int, device: torch.device) -> torch.Tensor:
    """(H, longest) integers."""
    rows = [torch.tensor([*row], dtype=torch.long) for row in rows]
    return pad_sequence(rows, batch_first=True, padding_value=filler).to(device)
