"""Greedy search with drafts: one decoder call verifies the last drafts and yields the next."""

import time
from dataclasses import dataclass, field

import torch

from espnet_medusa.accept import AcceptanceRule, accepted_lengths
from espnet_medusa.decoder.tree_decoder import NodeOutputs, TreeDecoder, TreeState
from espnet_medusa.draft.heads import HeadsSurrogate, draft_chain
from espnet_medusa.errors import InputError
from espnet_medusa.statistics import DecodingStatistics
from espnet_medusa.tree import DEAD, ROOT, chain_parents


@dataclass
class GreedyHypothesis:
    """What greedy search found for one utterance.

    Attributes:
        tokens: Without prompt and without the end symbol.
        score: Sum of the base head's log-probabilities, the end symbol's included.
        ended: Whether the end symbol was decoded; False at maximum length.
        statistics: Counts; audio and total seconds are the caller's to fill.
    """

    tokens: list[int] = field(default_factory=list)
    score: float = 0.0
    ended: bool = False
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)


@dataclass
class _Row:
    """An utterance under way.

    Attributes:
        hypothesis: Grows.
        max_length: Most tokens.
        min_length: No end symbol before so many tokens.
        num_nodes: Cached nodes, in slots 0 .. num_nodes - 1.
        num_drafts: Drafts of the next call that still fit.
    """

    hypothesis: GreedyHypothesis
    max_length: int
    min_length: int
    num_nodes: int = 0
    num_drafts: int = 0

    @property
    def done(self) -> bool:
        return self.hypothesis.ended or len(self.hypothesis.tokens) >= self.max_length


class GreedySearch:
    """Several tokens per decoder call; with no drafts it is plain greedy search.

    Args:
        decoder: Evaluates nodes and, through its heads, drafts.
        rule: Says which drafts stand.
        eos: End symbol.
        num_drafts: Tokens to draft per call; None takes all heads, 0 is plain greedy search.

    Raises:
        InputError: More drafts than the decoder has heads.
    """

    def __init__(
        self, decoder: TreeDecoder, rule: AcceptanceRule, eos: int, num_drafts: int | None = None
    ):
        self.surrogate = HeadsSurrogate(decoder)
        if num_drafts is None:
            num_drafts = self.surrogate.max_steps
        if not 0 <= num_drafts <= self.surrogate.max_steps:
            raise InputError(
                f"num_drafts: {num_drafts}; allowed: 0 to {self.surrogate.max_steps}, "
                "the heads of this model"
            )
        self.decoder = decoder
        self.rule = rule
        self.eos = eos
        self.num_drafts = num_drafts

    @torch.no_grad()
    def __call__(
        self,
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        prompt: torch.Tensor,
        max_lengths: list[int],
        min_lengths: list[int],
    ) -> list[GreedyHypothesis]:
        """Decode U utterances, each at its own pace.

        Args:
            memory: (U, S, D) encoder output.
            memory_lengths: (U,) frames.
            prompt: (U, P) tokens to start from.
            max_lengths: U, most tokens behind the prompt.
            min_lengths: U, fewest tokens before the end symbol.
        """
        started = time.perf_counter()
        room = self.decoder.max_depth - prompt.size(1) + 1
        hypotheses = [GreedyHypothesis() for _ in max_lengths]
        rows = [
            _Row(hypothesis, max(min(most, room), 1), least)
            for hypothesis, most, least in zip(hypotheses, max_lengths, min_lengths, strict=True)
        ]
        state = self.decoder.start(memory, memory_lengths, with_heads=self.num_drafts > 0)
        tokens, known = prompt, prompt.size(1)
        parents = torch.full_like(prompt[:, 0], ROOT)
        parents = chain_parents(len(rows), known, parents, 0)
        while rows:
            drafts = tokens[:, known:]
            outputs = self.decoder.extend(state, tokens, parents)
            logits = self.decoder.logits(outputs.hidden[:, known - 1 :])
            accepted, following = self._verify(rows, logits, drafts)
            running = self._keep(state, rows, known, accepted)
            rows = self._leave(state, rows, running, started)
            started = time.perf_counter()
            if rows:
                tokens = self._draft(rows, outputs, known, accepted, following, running)
                parents = self._hang(rows, tokens.size(1), state)
                known = 1
        return hypotheses

    def _verify(
        self, rows: list[_Row], logits: torch.Tensor, drafts: torch.Tensor
    ) -> tuple[list[int], torch.Tensor]:
        """Write what stands of the drafts and the base token behind it.

        Args:
            rows: U.
            logits: (U, k + 1, V) behind the last known token and behind each draft.
            drafts: (U, k).

        Returns:
            Accepted drafts per row, and the token that follows them (U,).
        """
        log_partition = torch.logsumexp(logits.float(), dim=-1)
        logits = self._forbid_early_end(rows, logits)
        columns = torch.arange(drafts.size(1), device=drafts.device)
        fitting = torch.tensor([row.num_drafts for row in rows], device=drafts.device)
        allowed = self.rule(logits[:, :-1], drafts) & (columns < fitting[:, None])
        accepted = accepted_lengths(allowed)
        utterances = torch.arange(len(rows), device=drafts.device)
        following = logits[utterances, accepted].argmax(dim=-1)
        written = torch.nn.functional.pad(drafts, (0, 1))
        written[utterances, accepted] = following
        scores = logits.gather(-1, written[..., None]).squeeze(-1).float() - log_partition
        # The one read of an iteration.
        table = torch.cat([accepted[:, None].double(), written.double(), scores.double()], dim=1)
        table, width = table.tolist(), written.size(1)
        for row, values in zip(rows, table, strict=True):
            count = int(values[0])
            tokens = [int(token) for token in values[1 : 2 + count]]
            self._write(row, tokens, values[1 + width : 2 + width + count])
        return [int(values[0]) for values in table], following

    def _write(self, row: _Row, tokens: list[int], scores: list[float]) -> None:
        """Add tokens up to the end symbol or the maximum length; count."""
        hypothesis, statistics = row.hypothesis, row.hypothesis.statistics
        for head in range(row.num_drafts):
            if head == len(statistics.drafted):
                statistics.drafted.append(0)
                statistics.accepted.append(0)
            statistics.drafted[head] += 1
            statistics.accepted[head] += head < len(tokens) - 1
        for token, score in zip(tokens, scores, strict=True):
            if row.done:
                break
            hypothesis.score += score
            statistics.tokens += 1
            if token == self.eos:
                hypothesis.ended = True
            else:
                hypothesis.tokens.append(token)
        statistics.decoder_calls += 1

    def _forbid_early_end(self, rows: list[_Row], logits: torch.Tensor) -> torch.Tensor:
        missing = [row.min_length - len(row.hypothesis.tokens) for row in rows]
        if max(missing) <= 0:
            return logits
        columns = torch.arange(logits.size(1), device=logits.device)
        early = columns < torch.tensor(missing, device=logits.device)[:, None]
        logits = logits.clone()
        logits[..., self.eos] = logits[..., self.eos].masked_fill(early, -torch.inf)
        return logits

    def _keep(
        self, state: TreeState, rows: list[_Row], known: int, accepted: list[int]
    ) -> list[int]:
        """Drop refused drafts from the tree; indices of the rows that go on."""
        first_new = state.tree.num_nodes - (known + self._width(rows))
        slots = []
        for row, count in zip(rows, accepted, strict=True):
            row.hypothesis.statistics.nodes += known + row.num_drafts
            slots.append([*range(row.num_nodes), *range(first_new, first_new + known + count)])
            row.num_nodes = len(slots[-1])
        width = max(row.num_nodes for row in rows)
        for kept in slots:
            kept.extend([DEAD] * (width - len(kept)))
        self.decoder.keep(state, torch.tensor(slots, device=state.tree.tokens.device))
        return [index for index, row in enumerate(rows) if not row.done]

    def _leave(
        self, state: TreeState, rows: list[_Row], running: list[int], started: float
    ) -> list[_Row]:
        """Share out the time of the call, let finished utterances go."""
        if running and len(running) < len(rows):
            self.decoder.select(state, torch.tensor(running, device=state.tree.tokens.device))
        seconds = (time.perf_counter() - started) / len(rows)
        for row in rows:
            row.hypothesis.statistics.decoder_seconds += seconds
        return [rows[index] for index in running]

    def _draft(
        self,
        rows: list[_Row],
        outputs: NodeOutputs,
        known: int,
        accepted: list[int],
        following: torch.Tensor,
        running: list[int],
    ) -> torch.Tensor:
        """(U, 1 + k) the next known token and the drafts behind it."""
        for row in rows:
            left = row.max_length - len(row.hypothesis.tokens)
            row.num_drafts = min(self.num_drafts, left - 1)
        columns = [known - 1 + accepted[index] for index in running]
        head_input = outputs.head_input[running, columns]
        drafts = draft_chain(self.surrogate, head_input, self._width(rows))
        return torch.cat([following[running, None], drafts], dim=1)

    @staticmethod
    def _width(rows: list[_Row]) -> int:
        return max(row.num_drafts for row in rows)

    @staticmethod
    def _hang(rows: list[_Row], length: int, state: TreeState) -> torch.Tensor:
        """(U, length) parents; drafts that do not fit hang nowhere, so no position overflows."""
        device = state.tree.tokens.device
        last = torch.tensor([row.num_nodes - 1 for row in rows], device=device)
        parents = chain_parents(len(rows), length, last, state.tree.num_nodes)
        fitting = torch.tensor([1 + row.num_drafts for row in rows], device=device)
        unfit = torch.arange(length, device=device) >= fitting[:, None]
        return parents.masked_fill(unfit, ROOT)
