"""Heads that listen, with weights laid out for drafting."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from espnet_medusa.model.heads import AttendingHeads
from espnet_medusa.runtime.layer import Packing, ask_memory
from espnet_medusa.runtime.linear import GELU, pack_module, pack_norm
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.tree.upload import upload


class EncoderKeysValues(NamedTuple):
    """U utterances as the decoder's last layer attends to them.

    Attributes:
        keys_values: Of the layer's ``attend_memory``.
        mask: (U, 1, 1, S) additive, or None.
        utterances: U.
    """

    keys_values: Any
    mask: torch.Tensor | None
    utterances: int


class PackedAttendingHeads:
    """Attending heads.

    Args:
        heads: Their weights; copied.
        precision: What to compute in.
    """

    def __init__(self, heads: AttendingHeads, precision: Precision):
        layer, attention = heads.layer, heads.layer.encoder_attn
        self.state_norm, self.token_norm, self.cross_norm, self.feed_forward_norm, self.norm = (
            pack_norm(norm, precision)
            for norm in (
                *(heads.state_norm, heads.token_norm),
                *(layer.encoder_attn_layer_norm, layer.final_layer_norm, heads.norm),
            )
        )
        self.fuse, self.queries, self.found, self.outer = (
            pack_module(module, precision)
            for module in (heads.fuse, attention.q_proj, attention.out_proj, layer.fc2)
        )
        self.inner = pack_module(layer.fc1, precision, GELU)

    def prepare(self, cross_keys_values: EncoderKeysValues) -> EncoderKeysValues:
        """What all steps attend to, as they read it, of ``TreeState.cross_keys_values``."""
        return cross_keys_values

    def advance(
        self,
        states: torch.Tensor,
        embedded: torch.Tensor,
        cross_keys_values: EncoderKeysValues,
        utterances: Sequence[int],
    ) -> torch.Tensor:
        """One token further.

        Args:
            states: (R, D).
            embedded: (R, D) tokens.
            cross_keys_values: What all steps attend to.
            utterances: R, whose states they are.

        Returns:
            (R, D).
        """
        states, embedded = self.state_norm(states), self.token_norm(embedded)
        hidden = self.fuse(torch.cat([states, embedded], dim=-1), states)
        queries = self.queries(self.cross_norm(hidden))
        hidden = self.found(self._ask(queries, cross_keys_values, utterances), hidden)
        return self.outer(self.inner(self.feed_forward_norm(hidden)), hidden)

    def chain(
        self,
        states: torch.Tensor,
        cross_keys_values: EncoderKeysValues,
        utterances: Sequence[int],
        depth: int,
    ) -> torch.Tensor | None:
        """As ``AttendingLayer``'s: step by step here."""
        return None

    def output(self, states: torch.Tensor) -> torch.Tensor:
        """What the vocabulary projection reads: (R, D) to (R, D)."""
        return self.norm(states)

    def _ask(
        self, queries: torch.Tensor, cross_keys_values: EncoderKeysValues, utterances: Sequence[int]
    ) -> torch.Tensor:
        order, sizes = by_utterance(utterances, cross_keys_values.utterances)
        packing = Packing.of(sizes, queries.device)
        if order is None:
            return ask_memory(
                queries, packing, cross_keys_values.keys_values, cross_keys_values.mask
            )
        order = upload(order, queries.device)
        found = ask_memory(
            queries[order], packing, cross_keys_values.keys_values, cross_keys_values.mask
        )
        return torch.empty_like(found).index_copy_(0, order, found)


def by_utterance(utterances: Sequence[int], count: int) -> tuple[list[int] | None, list[int]]:
    """R rows utterance by utterance: in which order, None as they are, and how many of each.

    Args:
        utterances: R, whose they are; some may have none.
        count: Utterances.
    """
    sizes = [0] * count
    for utterance in utterances:
        sizes[utterance] += 1
    order = sorted(range(len(utterances)), key=utterances.__getitem__)
    return (None if order == [*range(len(order))] else order), sizes
