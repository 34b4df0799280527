"""Medusa heads: several next tokens from one hidden state.

Medusa-Linear and Medusa-Block of Whisper-Medusa (Segal-Feldman et al., arXiv 2409.15869, section
3), in the form that aiola-lab/whisper-medusa trains, and recurrent heads, whose kin are Hydra
heads (Ankner et al., arXiv 2402.05109) and ReDrafter (Zhang et al., arXiv 2403.09919).
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_at_least, check_choice


@dataclass(frozen=True)
class HeadOptions:
    """``heads_conf`` of ``decoder: whisper_medusa``."""

    num_heads: int = 4  # K, tokens drafted behind the next one; recurrent: steps trained
    num_layers: int = 1  # residual layers per head; recurrent: behind the cell, for all steps
    base_head: bool = False  # own residual layers for the base head too, as aiola's ``base_head``
    # A decoder layer of their own before the heads. None: linear no, block and recurrent yes.
    # Only recurrent heads have the choice.
    own_block: bool | None = None


class ResidualLayers(torch.nn.Module):
    """``x + SiLU(W x + b)``, ``num_layers`` times; W starts at zero.

    Args:
        hidden_size: D.
        num_layers: How many.
    """

    def __init__(self, hidden_size: int, num_layers: int):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(hidden_size, hidden_size) for _ in range(num_layers)
        )
        for layer in self.layers:
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., D) to (..., D)."""
        for layer in self.layers:
            hidden = hidden + torch.nn.functional.silu(layer(hidden))
        return hidden

    @property
    def trained(self) -> bool:
        """Whether any weight has left its start at zero."""
        return any(bool(torch.any(parameter != 0)) for parameter in self.parameters())


class Heads(torch.nn.Module, ABC):
    """What draft behind the base head: K steps from what one evaluated node gives them.

    Args:
        hidden_size: D.
        options: Sizes.
        last_layer: The decoder's last layer; an own block starts as its copy.
        own_block: Whether the heads have a decoder layer of their own.

    Attributes:
        block: That layer, which makes their input from the last hidden state, or None.
        base: The base head's own residual layers, or None.
        num_heads: K.
    """

    def __init__(
        self,
        hidden_size: int,
        options: HeadOptions,
        last_layer: torch.nn.Module | None,
        own_block: bool,
    ):
        super().__init__()
        self.num_heads = options.num_heads
        self.block = copy.deepcopy(last_layer) if own_block else None
        self.base = ResidualLayers(hidden_size, options.num_layers) if options.base_head else None

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
    ) -> Iterator[torch.Tensor]:
        """One head after the other along known tokens, all positions at once.

        Args:
            head_input: (B, L, D).
            labels: (B, L) the token that follows each position; any token where padded.
            embed: Token embeddings, (...) to (..., D).

        Yields:
            For k = 1 to K: (B, L - k, D) at the positions that have a k-th token behind the next
            one, for the vocabulary projection; empty where L <= k.
        """


class LinearHeads(Heads):
    """Medusa-Linear: residual layers per head on the decoder's last hidden state."""

    has_block = False

    def __init__(
        self, hidden_size: int, options: HeadOptions, last_layer: torch.nn.Module | None = None
    ):
        if options.own_block not in (None, self.has_block):
            raise InputError(
                f"decoder_conf.heads_conf.own_block: {options.own_block} only suits heads: "
                "recurrent; leave it out, or use heads: linear (no block) or block"
            )
        super().__init__(hidden_size, options, last_layer, self.has_block)
        self.heads = torch.nn.ModuleList(
            ResidualLayers(hidden_size, options.num_layers) for _ in range(options.num_heads)
        )

    @property
    def trained(self) -> bool:
        return any(head.trained for head in self.heads)

    def forward(self, head_input: torch.Tensor) -> torch.Tensor:
        """(..., D) to (K, ..., D)."""
        return torch.stack([head(head_input) for head in self.heads])

    def unroll(self, head_input, labels, embed):
        for step, head in enumerate(self.heads, start=1):
            yield head(head_input[:, : max(labels.size(1) - step, 0)])


class BlockHeads(LinearHeads):
    """Medusa-Block: one more decoder layer, shared by the heads, starts as a copy of the last."""

    has_block = True


class RecurrentHeads(Heads):
    """One small cell, shared by all steps, that sees the token drafted last.

    ``state_0`` is the heads' input at an evaluated node, ``state_k = cell(state_(k-1), embedding
    of the token k behind the node)``; residual layers and the shared projection make logits of a
    state. K is how many steps are trained; drafts may go further.
    """

    def __init__(
        self, hidden_size: int, options: HeadOptions, last_layer: torch.nn.Module | None = None
    ):
        super().__init__(hidden_size, options, last_layer, options.own_block is not False)
        self.cell = RecurrentCell(hidden_size)
        self.output = ResidualLayers(hidden_size, options.num_layers)

    @property
    def trained(self) -> bool:
        return self.output.trained

    def advance(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """One token further: states (..., D) and that token's embeddings (..., D) to (..., D)."""
        return self.cell(states, embedded)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """What the vocabulary projection reads of states that were advanced: (..., D)."""
        return self.output(states)

    def unroll(self, head_input, labels, embed):
        states, embedded = head_input, embed(labels)
        length = labels.size(1)
        for step in range(1, self.num_heads + 1):
            left = max(length - step, 0)
            read = embedded[:, step - 1 : step - 1 + left]
            states = self.advance(states[:, :left], read)
            yield self(states)


class RecurrentCell(torch.nn.Module):
    """``state + W_2 SiLU(W_1 norm(state) + U embedding + b)``; W_2 starts at zero.

    Args:
        hidden_size: D of states and embeddings.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.norm = torch.nn.LayerNorm(hidden_size)
        self.inner = torch.nn.Linear(2 * hidden_size, 2 * hidden_size)
        self.outer = torch.nn.Linear(2 * hidden_size, hidden_size)
        torch.nn.init.zeros_(self.outer.weight)
        torch.nn.init.zeros_(self.outer.bias)

    def forward(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """(..., D) and (..., D) to (..., D)."""
        read = torch.cat([self.norm(states), embedded], dim=-1)
        return states + self.outer(torch.nn.functional.silu(self.inner(read)))


HEAD_TYPES: dict[str, type[Heads]] = {
    "linear": LinearHeads,
    "block": BlockHeads,
    "recurrent": RecurrentHeads,
}
NO_HEADS = "none"


def build_heads(
    kind: str, hidden_size: int, options: HeadOptions, last_layer: torch.nn.Module
) -> Heads | None:
    """Make heads by their config name; None for ``none`` or K = 0.

    Raises:
        InputError: An unknown kind or a size out of range; says what is allowed.
    """
    check_choice(kind, [NO_HEADS, *HEAD_TYPES], "decoder_conf.heads")
    check_at_least(options.num_heads, 0, "decoder_conf.heads_conf.num_heads")
    check_at_least(options.num_layers, 1, "decoder_conf.heads_conf.num_layers")
    if options.own_block not in (None, True, False):
        raise InputError(
            f"decoder_conf.heads_conf.own_block: '{options.own_block}'; allowed: true, false"
        )
    if kind == NO_HEADS or options.num_heads == 0:
        return None
    return HEAD_TYPES[kind](hidden_size, options, last_layer)
