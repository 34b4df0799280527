"""What one decoder call computes and reads, for the roofline."""

from dataclasses import dataclass

from peers.subject import Sizes

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
CACHE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 2}
# Of a layer, in D^2: self-attention 4, cross-attention 2 (its keys and values are there),
# feed-forward 8.
LAYER_WEIGHTS = 14


@dataclass(frozen=True)
class Call:
    """A decoder call on a chain of new nodes, their vocabulary projections included.

    Attributes:
        sizes: Of the decoder.
        weights: Type of its weights.
        nodes: New tokens.
        context: Tokens known before.
        frames: Of the memory.
    """

    sizes: Sizes
    weights: str
    nodes: int
    context: int
    frames: int

    @property
    def num_weights(self) -> int:
        """Weights that every call reads."""
        hidden = self.sizes.hidden_size
        return LAYER_WEIGHTS * self.sizes.layers * hidden**2 + self.sizes.vocab_size * hidden

    @property
    def attended(self) -> int:
        """Positions that a node attends to, of tokens and of frames."""
        return self.context + self.nodes + self.frames

    @property
    def operations(self) -> float:
        """Floating-point operations."""
        attention = 2 * self.sizes.layers * self.sizes.hidden_size * self.attended
        return 2.0 * self.nodes * (self.num_weights + attention)

    @property
    def bytes_read(self) -> float:
        """Weights, keys and values."""
        cached = 2 * self.sizes.layers * self.sizes.hidden_size * self.attended
        read = self.num_weights * WEIGHT_BYTES[self.weights]
        return float(read + cached * CACHE_BYTES[self.weights])

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes_read
