"""Minimum word error rate training: the expected word errors of an N-best list.

The loss is that of Prabhavalkar et al., "Minimum Word Error Rate Training for Attention-based
Sequence-to-Sequence Models" (arXiv 1712.01818). As in multi-token Speech-LLaMA (arXiv 2409.08148),
the log-probability of a token is that of the head that produced it, which is the score of the
search with unverified drafts.

A batch has U utterances with at most N hypotheses each.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from rapidfuzz.distance import Levenshtein
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.search.state import EndedHypothesis
from espnet_medusa.decoding.search.threshold_beam import threshold_beam_search
from espnet_medusa.espnet.training.projection_loss import CHUNK_LOGITS
from espnet_medusa.networks.heads.base import CrossKeysValues
from espnet_medusa.networks.multi_token_decoder import HiddenStates, MultiTokenDecoder

SPACES = ("<space>", "▁", "Ġ")  # ESPnet's characters, SentencePiece, byte-level BPE
CONTROL_TOKEN = re.compile(r"<\|.*\|>")  # such as Whisper's prompt and timestamps
NO_HEAD = -1
SPARE_TOKENS = 10  # by which hypotheses may be longer than the batch's longest reference


@dataclass(frozen=True)
class MWERObjective:
    """Expected word errors of the threshold beam search with the decoder's current weights.

    The search starts after ``start``, so its hypotheses include the other prompt tokens of
    Whisper's labels. These are not words.
    """

    pieces: Sequence[str]  # text of each token, from ``word_pieces``
    start: int  # first token of the prompt
    end: int  # end token
    beam_size: int  # N
    threshold: float  # minimum probability of a token that a head produces

    def __call__(
        self,
        decoder: MultiTokenDecoder,
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        references: Sequence[Sequence[int]],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return loss and stats of a batch.

        ESPnet's ``wer_*`` of an epoch is the mean of the batches' rates, weighted by utterances.

        Args:
            encoder_out: (U, S, D) encoder output; the loss has a gradient for it.
            encoder_out_lens: (U,).
            references: Tokens of U texts, without ``start`` and ``end``.

        Returns:
            ``mwer_loss``, and the stats ``mwer`` (the same), ``wer_nbest`` (expected word errors
            per reference word) and ``wer_best`` (word errors of the best hypotheses per reference
            word).
        """
        longest = max(map(len, references)) + SPARE_TOKENS
        n_best = self.search(decoder, encoder_out, encoder_out_lens, longest)
        log_probs = hypothesis_log_probs(decoder, encoder_out, encoder_out_lens, n_best, self.start)
        words = [words_of(tokens, self.pieces) for tokens in references]
        errors = [
            [Levenshtein.distance(words_of(h.tokens, self.pieces), reference) for h in hypotheses]
            for hypotheses, reference in zip(n_best, words, strict=True)
        ]
        errors = _padded(errors, 0, encoder_out.device)
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
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        max_length: int,
    ) -> list[list[EndedHypothesis]]:
        """Return n-best lists for encoder output (U, S, D) of lengths (U,), best first."""
        with torch.autocast(encoder_out.device.type, enabled=False):
            runtime = build_runtime(decoder, with_graphs=False)
            constraints, proposer = Constraints(self.end), runtime.proposer()
            search = threshold_beam_search(
                runtime, constraints, proposer, self.threshold, self.beam_size, decoder.num_heads
            )
            prompt = torch.full((len(encoder_out), 1), self.start, device=encoder_out.device)
            limits = LengthLimits(maxlenratio=-float(max_length))
            states = search(encoder_out.detach(), encoder_out_lens, prompt, limits)
        return [state.ended for state in states]


def word_pieces(token_list: Sequence[str], symbols: Collection[str]) -> list[str]:
    """Return the piece of text of each token; that of ``symbols`` and ``<|...|>`` is empty.

    Without a space symbol in the list, every token is a word. Byte-level BPE's letters for bytes
    are not decoded, which does not change the number of word errors.
    """
    space = next((sign for sign in SPACES if any(sign in token for token in token_list)), None)
    pieces = (f" {token}" if space is None else token.replace(space, " ") for token in token_list)
    return [
        "" if token in symbols or CONTROL_TOKEN.fullmatch(token) else piece
        for token, piece in zip(token_list, pieces, strict=True)
    ]


def words_of(tokens: Sequence[int], pieces: Sequence[str]) -> list[str]:
    return "".join(pieces[token] for token in tokens).split()


def hypothesis_log_probs(
    decoder: MultiTokenDecoder,
    encoder_out: torch.Tensor,
    encoder_out_lens: torch.Tensor,
    n_best: Sequence[Sequence[EndedHypothesis]],
    start: int,
) -> torch.Tensor:
    """Return log-probabilities (U, N), by the head that produced each token; -inf where missing.

    The hypotheses of an utterance share its encoder output in one teacher-forced pass.
    Head k predicts the token at position t from position t - k. Only rows with a produced token are
    projected.

    Args:
        decoder: Its dropout is active in training mode.
        encoder_out: (U, S, D) encoder output of lengths (U,).
        n_best: U lists of hypotheses after the prompt; at least one hypothesis in total.
        start: Token before the first one.
    """
    device, branches = encoder_out.device, max(map(len, n_best))
    present = torch.tensor([[n < len(row) for n in range(branches)] for row in n_best])
    hypotheses = [h for row in n_best for h in [*row, *[None] * (branches - len(row))]]
    tokens = [h.tokens[: len(h.heads)] if h else [start] for h in hypotheses]
    tokens = _padded(tokens, 0, device)
    heads = _padded([h.heads if h else [NO_HEAD] for h in hypotheses], NO_HEAD, device)
    inputs = torch.nn.functional.pad(tokens[:, :-1], (1, 0), value=start).view(len(n_best), -1)
    *states, cross = decoder.hidden_states(encoder_out, encoder_out_lens, inputs, branches)
    states = (part.reshape(*tokens.shape, -1) for part in states)
    if cross is not None:  # the same for all hypotheses of an utterance
        repeated = (None if part is None else part.repeat_interleave(branches, 0) for part in cross)
        cross = CrossKeysValues(*repeated)
    outputs = HiddenStates(*states, cross)
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


def mwer_loss(log_probs: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    """Return expected word errors minus the list's mean word errors, averaged over utterances.

    The list's mean does not change the gradient, because its probabilities sum to one. An utterance
    with one hypothesis contributes 0.

    Args:
        log_probs: (U, N), -inf for missing hypotheses; renormalized over each list.
        errors: (U, N) word errors; ignored for missing hypotheses.

    Returns:
        Scalar; negative if hypotheses with fewer errors are more probable.
    """
    present = log_probs > -torch.inf
    several = present.sum(dim=1) > 1
    errors = errors.masked_fill(~present, 0)[several].to(log_probs.dtype)
    mean = errors.sum(dim=1) / present[several].sum(dim=1)
    return (expected_errors(log_probs[several], errors) - mean).sum() / len(log_probs)


def expected_errors(log_probs: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    """Return expected errors (U,) under renormalized ``log_probs`` (U, N); errors are finite."""
    return (log_probs.softmax(dim=1) * errors).sum(dim=1)


def _token_log_probs(
    hidden: torch.Tensor, targets: torch.Tensor, projection: torch.Tensor
) -> torch.Tensor:
    """Return log-probabilities (n,) of tokens (n,); the backward pass recomputes the logits."""
    size = max(1, CHUNK_LOGITS // len(projection))
    chunks = zip(hidden.split(size), targets.split(size), strict=True)
    options = {"use_reentrant": False, "preserve_rng_state": False}
    parts = [checkpoint(_project, rows, ids, projection, **options) for rows, ids in chunks]
    return torch.cat(parts)


def _project(hidden: torch.Tensor, targets: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    logits = torch.nn.functional.linear(hidden, projection)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(dim=1)


def _padded(rows: Sequence[Sequence[int]], filler: int, device: torch.device) -> torch.Tensor:
    """Return integers (rows, longest row), padded with ``filler``."""
    rows = [torch.tensor([*row], dtype=torch.long) for row in rows]
    return pad_sequence(rows, batch_first=True, padding_value=filler).to(device)
