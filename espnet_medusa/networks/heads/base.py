"""The base class of all heads, and their options."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_at_least


@dataclass(frozen=True)
class HeadOptions:
    """``heads_conf`` of ``decoder_conf``."""

    num_heads: int = 4  # K, tokens after the next one; recurrent, attending: steps trained
    num_layers: int = 1  # residual layers per head; recurrent: after the cell, for all steps
    base_head: bool = False  # residual layers for the base head, too, as in whisper-medusa
    # Whether the heads have a decoder layer below them. None: block and recurrent heads do, others
    # do not. Only recurrent heads accept both True and False.
    own_block: bool | None = None
    dropout: float = 0.0  # attending: of each residual branch, in training

    def check(self) -> None:
        """Raise an InputError if a size is out of range."""
        where = "decoder_conf.heads_conf"
        check_at_least(self.num_heads, 0, f"{where}.num_heads")
        check_at_least(self.num_layers, 1, f"{where}.num_layers")
        if not 0 <= self.dropout < 1:
            raise InputError(f"{where}.dropout: {self.dropout}; allowed: from 0 to below 1")


@dataclass(frozen=True)
class Trunk:
    """The decoder below the heads."""

    hidden_size: int  # D
    vocab_size: int  # V
    # The decoder's last layer; the heads' block starts as its copy.
    last_layer: torch.nn.Module | None = None
    norm: torch.nn.Module | None = None  # after the last layer


class CrossKeysValues(NamedTuple):
    """Cross-attention keys and values of the decoder's last layer."""

    keys: torch.Tensor  # (B, heads, S, size)
    values: torch.Tensor  # (B, heads, S, size)
    mask: torch.Tensor | None  # (B, 1, 1, S) additive, or None without padding


class Heads(torch.nn.Module, ABC):
    """Heads that predict K tokens after the one that the base head predicts.

    Args:
        trunk: The decoder below the heads.
        own_block: Whether a decoder layer computes the heads' input from the last hidden state.

    Attributes:
        allowed: Names of the options that these heads have.
        block: The layer of ``own_block``, or None.
        layer: A copy of the decoder's last layer that every step uses, or None.
        base: Layers of the base head before the vocabulary projection, or None.
        num_heads: K.
        uses_cross_attention: Whether ``unroll`` requires ``cross_keys_values``.
    """

    allowed: tuple[str, ...] = ("num_heads", "num_layers", "base_head", "own_block")
    uses_cross_attention = False

    def __init__(self, trunk: Trunk, options: HeadOptions, own_block: bool = False):
        super().__init__()
        self.num_heads = options.num_heads
        self.block = copy.deepcopy(trunk.last_layer) if own_block else None
        self.layer: torch.nn.Module | None = None
        self.base: torch.nn.Module | None = None

    def projections(self, shared: torch.Tensor) -> list[torch.Tensor]:
        """Return each head's vocabulary projection (V, D); ``shared`` is the base head's."""
        return [shared] * self.num_heads

    @property
    @abstractmethod
    def trained(self) -> bool:
        """Whether weights differ from their initial values."""

    def observe(self, outputs: Sequence[torch.Tensor]) -> None:
        """Update statistics of each head's outputs (R, D) in training, if the heads have any."""
        return

    @abstractmethod
    def unroll(
        self,
        head_input: torch.Tensor,
        labels: torch.Tensor,
        embed: Callable[[torch.Tensor], torch.Tensor],
        cross_keys_values: CrossKeysValues | None = None,
    ) -> Iterator[torch.Tensor]:
        """Compute the heads for all positions of known tokens, one head after the other.

        Args:
            head_input: (B, L, D).
            labels: (B, L) the token that follows each position; any token in padding.
            embed: Token embeddings, (...) to (..., D).
            cross_keys_values: Required if ``uses_cross_attention``.

        Yields:
            For k = 1 to K: (B, L - k, D) inputs of the vocabulary projection, for positions with a
            k-th token after the next one; empty if L <= k.
        """
