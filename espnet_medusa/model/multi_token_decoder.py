"""What trained decoders with several heads share."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from espnet2.asr.decoder.abs_decoder import AbsDecoder

from espnet_medusa.errors import InputError
from espnet_medusa.model.heads import HeadOptions, Heads, Trunk, build_heads
from espnet_medusa.model.heads.base import CrossKeysValues
from espnet_medusa.options import build_options

TOKEN_COUNTS = "token_counts"


class HiddenStates(NamedTuple):
    """What whole sequences give: last hidden states, and what the heads start from.

    Attributes:
        hidden: (B, L, D).
        head_input: (B, L, D); ``hidden`` itself without an own block.
        last_layer_input: (B, L, D), what the last layer reads.
        cross_keys_values: The audio, where heads listen; else None.
    """

    hidden: torch.Tensor
    head_input: torch.Tensor
    last_layer_input: torch.Tensor
    cross_keys_values: CrossKeysValues | None = None


class MultiTokenDecoder(AbsDecoder):
    """A decoder with heads that predict tokens behind the next one.

    Its own view of the weights is ``forward``: teacher-forced, as trained. Searches go over a token
    tree with cached keys and values, which ``runtime.build`` makes of them.

    Attributes:
        network: Name of the attribute that holds the network below the heads.
        heads: What draft, or None.
        original_last_layer: Frozen copy of the last layer, a teacher; or None.
    """

    network: str
    heads: Heads | None
    original_last_layer: torch.nn.Module | None

    def _add_heads(self, kind: str, heads_conf: dict, trunk: Trunk) -> None:
        options = build_options(HeadOptions, heads_conf, "decoder_conf.heads_conf")
        self.heads = build_heads(kind, trunk, options)
        if self.heads is not None:
            # Of the labels that trained the heads; the most frequent ones are worth drafting.
            counts = torch.zeros(trunk.vocab_size, dtype=torch.long)
            self.register_buffer(TOKEN_COUNTS, counts)
        self.register_load_state_dict_pre_hook(_let_copies_follow)
        self.register_load_state_dict_pre_hook(_count_from_zero)

    # What each network answers in its own way.

    @property
    @abstractmethod
    def conf(self) -> dict:
        """The part of ``decoder_conf`` that says the same without a pretrained model's name."""

    @property
    @abstractmethod
    def layers(self) -> torch.nn.ModuleList:
        """The decoder's own layers, without the heads' block."""

    @property
    @abstractmethod
    def layers_name(self) -> str:
        """Where these are: their name from the decoder on."""

    @property
    @abstractmethod
    def projection(self) -> torch.Tensor:
        """(V, D) vocabulary projection of the base head."""

    @property
    @abstractmethod
    def norm(self) -> torch.nn.Module:
        """Behind the last layer."""

    @abstractmethod
    def max_depth(self, frames: int) -> int:
        """Positions of start symbol and text behind so many frames of memory."""

    @abstractmethod
    def embed_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token embeddings without positions: (...) to (..., D)."""

    @abstractmethod
    def hidden_states(
        self,
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        tokens: torch.Tensor,
        branches: int = 1,
    ) -> HiddenStates:
        """Hidden states of whole sequences, for the base head and for the heads.

        Args:
            memory: (B, S, D) encoder output.
            memory_lengths: (B,).
            tokens: (B, N L); what stands behind a sequence's end does not matter to it.
            branches: N sequences of one utterance, one behind the other, that do not see each
                other; the memory is read once for all of them.
        """

    def from_states(
        self, hidden: torch.Tensor, memory: torch.Tensor | None, memory_lengths: torch.Tensor | None
    ) -> HiddenStates:
        """What ``hidden_states`` gives, from last hidden states that were kept of it.

        Args:
            hidden: (B, L, D).
            memory: (B, S, D), which some heads read; None: these do not.
            memory_lengths: (B,).

        Raises:
            InputError: The heads' memory is missing, or this network keeps no states.
        """
        head_input = hidden
        if self.heads is not None and self.heads.reads_memory and memory is None:
            raise InputError("memory: missing; these heads read it: keep it with the states")
        if self.heads is not None and self.heads.block is not None:
            head_input = self._run_block(hidden, memory, memory_lengths)
        return HiddenStates(
            hidden, head_input, hidden, self._cross_keys_values(memory, memory_lengths)
        )

    def _cross_keys_values(
        self, memory: torch.Tensor | None, memory_lengths: torch.Tensor | None
    ) -> CrossKeysValues | None:
        if self.heads is None or not self.heads.listens:
            return None
        return self.project_memory(memory, memory_lengths)

    def project_memory(self, memory: torch.Tensor, memory_lengths: torch.Tensor) -> CrossKeysValues:
        """Memory (B, S, D) of (B,) frames as the last layer attends to it.

        Raises:
            InputError: It does not.
        """
        raise InputError(f"{type(self).__name__}: its layers do not attend to a memory")

    def _run_block(
        self, hidden: torch.Tensor, memory: torch.Tensor, memory_lengths: torch.Tensor
    ) -> torch.Tensor:
        """(B, L, D) through the heads' own block."""
        raise InputError(f"{type(self).__name__}: its heads do not train on kept states")

    # Teacher-forced view.

    def forward(
        self,
        hs_pad: torch.Tensor,
        hlens: torch.Tensor,
        ys_in_pad: torch.Tensor,
        ys_in_lens: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Base logits of whole token sequences, ESPnet's contract.

        Args:
            hs_pad: (B, S, D) memory.
            hlens: (B,) its frames.
            ys_in_pad: (B, L) input tokens.
            ys_in_lens: (B,) their number.

        Returns:
            Logits (B, L, V) and ``ys_in_lens``.
        """
        return self.logits(self.hidden_states(hs_pad, hlens, ys_in_pad).hidden), ys_in_lens

    def _through_layers(
        self,
        hidden: torch.Tensor,
        run: Callable[[Iterable[torch.nn.Module], torch.Tensor], torch.Tensor],
    ) -> HiddenStates:
        """Embedded sequences through all layers, and the heads' block if they have one.

        Args:
            hidden: (B, N L, D).
            run: Runs them through some layers.
        """
        below = run(self.layers[:-1], hidden)
        hidden = head_input = self.norm(run(self.layers[-1:], below))
        if self.heads is not None and self.heads.block is not None:
            head_input = run([self.heads.block], hidden)
        return HiddenStates(hidden, head_input, below)

    def unroll_hidden(self, outputs: HiddenStates, labels: torch.Tensor) -> list[torch.Tensor]:
        """What the vocabulary projections read, of the base head and of the heads behind it.

        Args:
            outputs: Of ``hidden_states``.
            labels: (B, L) the token that follows each position; any token where padded.

        Returns:
            For k = 0 to K: (B, L - k, D) for the token k behind the next one.
        """
        hidden = [self.base_hidden(outputs.hidden)]
        if self.heads is not None:
            hidden += self.heads.unroll(
                outputs.head_input, labels, self.embed_tokens, outputs.cross_keys_values
            )
        return hidden

    def unroll_heads(
        self,
        head_input: torch.Tensor,
        labels: torch.Tensor,
        cross_keys_values: CrossKeysValues | None = None,
    ) -> Iterator[torch.Tensor]:
        """Logits of one head after the other, so that one can be freed before the next.

        Args:
            head_input: (B, L, D) of ``hidden_states``.
            labels: (B, L) the token that follows each position; any token where padded.
            cross_keys_values: Of ``hidden_states``.

        Yields:
            For k = 1 to K: (B, L - k, V) for the token k behind the next one.
        """
        if self.heads is not None:
            unrolled = self.heads.unroll(head_input, labels, self.embed_tokens, cross_keys_values)
            for hidden, projection in zip(unrolled, self.projections[1:], strict=True):
                yield torch.nn.functional.linear(hidden, projection)

    @property
    def projections(self) -> list[torch.Tensor]:
        """(V, D) of the base head and of each head behind it; often one and the same."""
        shared = self.projection
        return [shared] if self.heads is None else [shared, *self.heads.projections(shared)]

    @property
    def num_heads(self) -> int:
        """K, the heads that can draft; 0 without heads."""
        return 0 if self.heads is None else self.heads.num_heads

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Base head: (..., D) to (..., V)."""
        return self.project(self.base_hidden(hidden))

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Through the base head's vocabulary projection: (..., D) to (..., V)."""
        return torch.nn.functional.linear(hidden, self.projection)

    def base_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the vocabulary projection reads of the base head: (..., D) to (..., D)."""
        if self.heads is not None and self.heads.base is not None:
            return self.heads.base(hidden)
        return hidden

    # Which tokens are worth drafting.

    def count_tokens(self, tokens: torch.Tensor) -> None:
        """Add training tokens (n,) to the counts; with several GPUs each keeps its own share."""
        self.token_counts += torch.bincount(tokens, minlength=len(self.token_counts))

    def draft_vocabulary(self, size: int, eos: int) -> torch.Tensor:
        """The most frequent training tokens, the end symbol among them: (N,) ids, ascending.

        Args:
            size: Most of them; tokens that training never saw are left out.
            eos: End symbol.

        Raises:
            InputError: The heads were trained without counting, or not at all.
        """
        counts = self.token_counts.clone() if self.num_heads else torch.zeros(1)
        if not bool(counts.any()):
            raise InputError(
                f"draft_vocab_size: {size}; this model holds no counts of training tokens; train "
                "its heads with this version, or leave draft_vocab_size out"
            )
        counts[eos] = counts.max() + 1
        seen = int((counts > 0).sum())
        return counts.topk(min(size, seen)).indices.sort().values

    def release(self) -> None:
        """Give back the memory of weights: what was made of them stays, nothing more can be.

        Runtimes and proposers hold what they need themselves.
        """
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.data = tensor.new_empty(0)


def _let_copies_follow(decoder, state_dict, prefix, *_) -> None:
    """Weights are being loaded: copies of the last layer that they do not bring copy it anew.

    The heads' block or layer starts as a copy of the last layer. ESPnet builds the model first and
    loads ``init_param`` into it later, so the copy made at construction is one of random weights.
    ESPnet fills what a file lacks with the model's own tensors: these are copies that it does not
    bring.
    """
    last = f"{prefix}{decoder.layers_name}.{len(decoder.layers) - 1}."
    copies = {"original_last_layer.": decoder.original_last_layer}
    if decoder.heads is not None:
        copies["heads.block."] = decoder.heads.block
        copies["heads.layer."] = decoder.heads.layer
    current = decoder.layers[-1].state_dict()
    for name, module in copies.items():
        if module is None or any(last + part not in state_dict for part in current):
            continue
        own = module.state_dict()  # the heads' layer has no self-attention
        incoming = {part: state_dict.get(prefix + name + part) for part in own}
        untrained = all(
            value is None
            or (value.data_ptr() == own[part].data_ptr() and torch.equal(value, current[part]))
            for part, value in incoming.items()
        )
        if untrained:
            for part in own:
                state_dict[prefix + name + part] = state_dict[last + part]


def _count_from_zero(decoder, state_dict, prefix, *_) -> None:
    """Checkpoints of heads from elsewhere, or from before tokens were counted, have no counts."""
    if hasattr(decoder, TOKEN_COUNTS):
        counts = torch.zeros_like(decoder.token_counts)
        state_dict.setdefault(prefix + TOKEN_COUNTS, counts)
