"""What every kind of heads has: several next tokens from one hidden state."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_at_least


@dataclass(frozen=True)
class HeadOptions:
    """``heads_conf`` of ``decoder_conf``."""

    num_heads: int = 4  # K, tokens drafted behind the next one; recurrent: steps trained
    num_layers: int = 1  # residual layers per head; recurrent: behind the cell, for all steps
    base_head: bool = False  # own residual layers for the base head too, as aiola's ``base_head``
    # A decoder layer of their own before the heads. None: block and recurrent yes, the others no.
    # Only recurrent heads have the choice.
    own_block: bool | None = None
    dropout: float = 0.0  # attending: of what each part of the layer adds, while training

    def check(self) -> None:
        """Refuse sizes that no heads have.

        Raises:
            InputError: Names the option, its value and what is allowed.
        """
        check_at_least(self.num_heads, 0, "decoder_conf.heads_conf.num_heads")
        check_at_least(self.num_layers, 1, "decoder_conf.heads_conf.num_layers")
        if not 0 <= self.dropout < 1:
            raise InputError(
                f"decoder_conf.heads_conf.dropout: {self.dropout}; allowed: from 0 to below 1"
            )


@dataclass(frozen=True)
class Trunk:
    """What heads need to know of the decoder below them.

    Attributes:
        hidden_size: D.
        vocab_size: V.
        last_layer: The decoder's last layer; an own block starts as its copy.
        norm: Behind it.
    """

    hidden_size: int
    vocab_size: int
    last_layer: torch.nn.Module | None = None
    norm: torch.nn.Module | None = None


class CrossKeysValues(NamedTuple):
    """The audio as the decoder's last layer attends to it, for heads that do so themselves.

    Attributes:
        keys: (B, heads, S, size).
        values: (B, heads, S, size).
        mask: (B, 1, 1, S) additive, or None where nothing is padding.
    """

    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor | None


class Heads(torch.nn.Module, ABC):
    """What draft behind the base head: K steps from what one evaluated node gives them.

    Args:
        trunk: What they stand on.
        options: Sizes.
        own_block: Whether the heads have a decoder layer of their own.

    Attributes:
        block: That layer, which makes their input from the last hidden state, or None.
        layer: One that every step runs through, or None.
        base: What the base head has before the vocabulary projection, or None.
        num_heads: K.
        listens: Whether ``unroll`` needs the audio.
    """

    listens = False

    def __init__(self, trunk: Trunk, options: HeadOptions, own_block: bool = False):
        super().__init__()
        self.num_heads = options.num_heads
        self.block = copy.deepcopy(trunk.last_layer) if own_block else None
        self.layer: torch.nn.Module | None = None
        self.base: torch.nn.Module | None = None

    @property
    def reads_memory(self) -> bool:
        """Whether anything of them reads the encoder's output."""
        return self.listens or self.block is not None

    def projections(self, shared: torch.Tensor) -> list[torch.Tensor]:
        """(V, D) by which each head's hidden states become logits, K of them.

        Args:
            shared: The base head's.
        """
        return [shared] * self.num_heads

    @property
    @abstractmethod
    def trained(self) -> bool:
        """False when the heads are as they were made: all their weights that start at zero."""

    @abstractmethod
    def unroll(
        self,
        head_input: torch.Tensor,
        labels: torch.Tensor,
        embed: Callable[[torch.Tensor], torch.Tensor],
        cross_keys_values: CrossKeysValues | None = None,
    ) -> Iterator[torch.Tensor]:
        """One head after the other along known tokens, all positions at once.

        Args:
            head_input: (B, L, D).
            labels: (B, L) the token that follows each position; any token where padded.
            embed: Token embeddings, (...) to (..., D).
            cross_keys_values: The audio, for heads that listen.

        Yields:
            For k = 1 to K: (B, L - k, D) at the positions that have a k-th token behind the next
            one, for the vocabulary projection; empty where L <= k.
        """
