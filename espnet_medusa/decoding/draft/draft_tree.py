"""A draft model's token trees, one per utterance."""

from collections.abc import Sequence
from itertools import takewhile

import torch
from torch.nn.utils.rnn import pad_sequence

from espnet_medusa.decoding.tree.placement import Placement, compact
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import DraftCost, DraftInput, head_inputs
from espnet_medusa.decoding.tree.token_tree import upload
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder


class DraftTree:
    """The draft model's token trees of U utterances, with their prompts as ``roots``.

    The search has other ``Prefix`` objects, for the main model's tokens.
    """

    def __init__(self, decoder: TreeDecoder, draft_inputs: Sequence[DraftInput]):
        encoder_outs = [utterance.encoder_out for utterance in draft_inputs]
        padded = pad_sequence(encoder_outs, batch_first=True)
        lengths = torch.tensor([*map(len, encoder_outs)], device=padded.device)
        frames_of_rows = [utterance.frames for utterance in draft_inputs]
        if all(frames is not None for frames in frames_of_rows):
            lengths = pad_sequence(frames_of_rows, batch_first=True)
        self.decoder, self.device = decoder, padded.device
        self.state = decoder.start(padded, lengths, with_heads=False)
        self.roots = [Prefix(utterance.prompt[-1]) for utterance in draft_inputs]
        pairs = [*zip(self.roots, draft_inputs, strict=True)]
        self._placements = {root: Placement(one.prompt) for root, one in pairs}
        self._most_tokens = {
            root: decoder.max_depth(len(one.encoder_out)) - len(one.prompt) for root, one in pairs
        }
        self.costs = dict.fromkeys(self.roots, DraftCost())  # so far, of each utterance

    def has_room(self, node: Prefix) -> bool:
        """Return whether the draft model has a position for another token."""
        return node.length < self._most_tokens[node.root]

    def logits(self, nodes: Sequence[Prefix]) -> torch.Tensor:
        """Return logits (R, V) after R nodes; one call evaluates them and their ancestors."""
        rows = {node: row for row, node in enumerate(dict.fromkeys(nodes))}
        self._evaluate([*rows])
        logits = self.decoder.logits(head_inputs([*rows]))
        if len(rows) == len(nodes):
            return logits
        return logits[upload([rows[node] for node in nodes], logits.device)]

    def keep(self, running: Sequence[Prefix]) -> None:
        """Keep these nodes, their ancestors and descendants; drop utterances without any."""
        tips: dict[Prefix, list[Prefix]] = {}
        for node in running:
            tips.setdefault(node.root, []).append(node)
        going = [row for row, root in enumerate(self._placements) if root in tips]
        if len(going) < len(self._placements):
            for root in [root for root in self._placements if root not in tips]:
                self._placements.pop(root).clear()
            if going:
                self.decoder.select(self.state, going)
        if going and self.state.num_nodes:
            placements = [*self._placements.values()]
            compact(self.decoder, self.state, placements, [tips[root] for root in self._placements])

    def _evaluate(self, nodes: Sequence[Prefix]) -> None:
        new: dict[Prefix, list[Prefix]] = {root: [] for root in self._placements}
        seen = set()
        for node in nodes:
            path = [*takewhile(lambda n: not n.evaluated and n not in seen, node.ancestors())]
            if path:
                seen.update(path)
                new[node.root] += reversed(path)
        if not seen:
            return
        placed = [placement.place(new[root]) for root, placement in self._placements.items()]
        tokens, parents = zip(*placed, strict=True)
        for root, row in zip(self._placements, tokens, strict=True):
            calls, evaluated = self.costs[root]
            self.costs[root] = DraftCost(calls + bool(row), evaluated + len(row))
        first = self.state.num_nodes
        hidden = self.decoder.extend(self.state, tokens, parents).hidden
        places = [node for p in self._placements.values() for node in p.slots[first:]]
        for place, node in enumerate(places):
            if node is not None:
                node.head_input = (hidden, place)
        for placement in self._placements.values():
            placement.fill(self.state.num_nodes)
