"""ESPnet's scorer interface for our decoders, so that its BatchBeamSearch uses cached nodes.

In each step, ESPnet's Whisper decoder recomputes the prefix. These scorers compute the new node.
"""

from dataclasses import dataclass

import torch

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.tree.token_tree import ROOT, chain_parents
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder, TreeState
from espnet_medusa.networks.espnet_compat import BatchScorerInterface
from espnet_medusa.networks.espnet_transformer import TransformerMedusaDecoder
from espnet_medusa.networks.llama_decoder import SpeechLlamaDecoder
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder


@dataclass
class SharedTree:
    """One utterance's tree, shared by all its hypotheses."""

    decoder: TreeDecoder  # computes nodes
    state: TreeState | None  # its nodes and cache; None: replaced by a compacted tree


@dataclass(frozen=True)
class NodeReference:
    """Scorer state of a hypothesis: the node of its last token."""

    shared: SharedTree
    node: int


@dataclass(frozen=True)
class CachedRuntime:
    """The runtime built last and the version of its weights; copies and pickles are empty."""

    version: list | None = None
    decoder: TreeDecoder | None = None

    def __reduce__(self) -> tuple:
        return CachedRuntime, ()  # oneDNN's weights can be neither copied nor pickled


class TreeScorer(BatchScorerInterface):
    """A mixin for trained decoders that scores with their runtime.

    The runtime is built when an utterance begins and weights have changed since the last one.
    """

    _cached = CachedRuntime()

    def init_state(self, x: torch.Tensor) -> NodeReference:
        """Begin an utterance with encoder output (S, D)."""
        lengths = torch.tensor([x.size(0)], device=x.device)
        version = [(weight.data_ptr(), weight._version) for weight in self.parameters()]
        if self._cached.version != version:
            self._cached = CachedRuntime(version, build_runtime(self))
        decoder = self._cached.decoder
        shared = SharedTree(decoder, decoder.start(x[None], lengths, with_heads=False))
        return NodeReference(shared, ROOT)

    def batch_init_state(
        self, x: torch.Tensor, xs_lengths: torch.Tensor | None = None
    ) -> NodeReference | list[NodeReference]:
        """Begin an utterance (S, D), or U utterances (U, S, D) of ESPnet 202611's batches."""
        if x.dim() == 2:
            return self.init_state(x)
        sizes = [x.size(1)] * len(x) if xs_lengths is None else xs_lengths.tolist()
        return [self.init_state(row[:size]) for row, size in zip(x, sizes, strict=True)]

    def batch_score(self, ys, states, xs, xs_mask=None) -> tuple[torch.Tensor, list[NodeReference]]:
        """Return log-probabilities (hypotheses, V) of the next token, and new states.

        ``ys`` (hypotheses, L) are prefixes, ``states`` those of one utterance or of several, each
        with the same number at the first step. ``xs`` and its mask are not used: the states have
        the encoder output. Raise RuntimeError for states from before a compaction.
        """
        if isinstance(states[0], list):
            places = [row * len(states[0]) // len(states) for row in range(len(states))]
            states = [roots[place] for roots, place in zip(states, places, strict=True)]
        rows_of: dict[int, list[int]] = {}
        for row, state in enumerate(states):
            rows_of.setdefault(id(state.shared), []).append(row)
        scores, found = [], {}
        for rows in rows_of.values():
            some = [states[row] for row in rows]
            part, new = self._score(ys[rows], some, compact=some[0].node != ROOT)
            scores.append(part)
            found |= zip(rows, new, strict=True)
        order = torch.tensor([*found]).argsort().to(ys.device)
        return torch.cat(scores)[order], [found[row] for row in range(len(states))]

    def score(self, y, state, x) -> tuple[torch.Tensor, NodeReference]:
        """Score one hypothesis (L,) without compaction: its siblings still need their nodes."""
        scores, states = self._score(y[None], [state], compact=False)
        return scores[0], states[0]

    def _score(
        self, ys: torch.Tensor, states: list[NodeReference], compact: bool
    ) -> tuple[torch.Tensor, list[NodeReference]]:
        if any(state.shared.state is None for state in states):
            raise RuntimeError("a dropped hypothesis is scored again: its nodes are not cached")
        if compact:
            states = self._compact(states[0].shared, states)
        shared = states[0].shared
        first, new = shared.state.num_nodes, len(states)
        tokens, parents = ys[:, -1].tolist(), [state.node for state in states]
        if states[0].node == ROOT:  # all hypotheses are the prompt
            tokens, new = ys[0].tolist(), 1
            parents = chain_parents(len(tokens), ROOT, first)
        outputs = shared.decoder.extend(shared.state, [tokens], [parents])
        scores = torch.log_softmax(shared.decoder.logits(outputs.hidden[-new:]), dim=-1)
        last = range(shared.state.num_nodes - new, shared.state.num_nodes)
        references = [NodeReference(shared, node) for node in last]
        return scores.expand(len(states), -1), references * (len(states) // new)

    def _compact(self, shared: SharedTree, states: list[NodeReference]) -> list[NodeReference]:
        """Drop nodes of dropped hypotheses once they are at least half of all nodes."""
        tree = shared.state.trees[0]
        alive = sorted({slot for state in states for slot in tree.path(state.node)})
        if 2 * len(alive) > len(tree):
            return states
        shared.decoder.keep(shared.state, [alive])
        compacted = SharedTree(shared.decoder, shared.state)
        shared.state = None
        slots = {old: new for new, old in enumerate(alive)}
        return [NodeReference(compacted, slots[state.node]) for state in states]


class ScoringWhisperDecoder(TreeScorer, WhisperMedusaDecoder):
    """``decoder: whisper_medusa`` for ESPnet."""


class ScoringTransformerDecoder(TreeScorer, TransformerMedusaDecoder):
    """``decoder: transformer_medusa`` for ESPnet."""


class ScoringLlamaDecoder(TreeScorer, SpeechLlamaDecoder):
    """``decoder: speech_llama`` for ESPnet."""
