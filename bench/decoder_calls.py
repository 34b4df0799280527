"""Single decoder calls behind a sentence's first half: ours, and transformers' with its cache.

A call evaluates nodes that follow one another, and what the vocabulary projection says of each;
what it has added is dropped again.
"""

import copy
import time
from typing import Protocol

import torch
from machine import wait_for
from transformers.cache_utils import EncoderDecoderCache, StaticCache
from transformers.models.whisper.modeling_whisper import WhisperDecoder

from espnet_medusa.runtime.cuda_graph import slot_bucket
from espnet_medusa.tree.token_tree import ROOT, chain_parents
from espnet_medusa.tree.tree_decoder import TreeDecoder

CONTEXT_TOKENS = 36  # known before: half of a sentence
WARM_UP_CALLS = 5  # who captures or compiles does so in the first ones


class Calls(Protocol):
    """U utterances of which a decoder knows ``CONTEXT_TOKENS``."""

    def call(self, nodes: int) -> None:
        """Evaluate so many more of each."""

    def undo(self, nodes: int) -> None:
        """Drop them."""


class TreeCalls:
    """Ours.

    Args:
        decoder: Any.
        memory: (U, S, D) encoder output.
    """

    def __init__(self, decoder: TreeDecoder, memory: torch.Tensor):
        self.decoder, self.utterances = decoder, range(len(memory))
        lengths = torch.full((len(memory),), memory.size(1), device=memory.device)
        self.state = decoder.start(memory, lengths, with_heads=False)
        self._extend(CONTEXT_TOKENS, ROOT, 0)

    def call(self, nodes: int) -> None:
        hidden = self._extend(nodes, CONTEXT_TOKENS - 1, CONTEXT_TOKENS)
        self.decoder.logits(hidden)

    def undo(self, nodes: int) -> None:
        self.decoder.keep(self.state, [[*range(CONTEXT_TOKENS)] for _ in self.utterances])

    def _extend(self, nodes: int, parent: int, first: int) -> torch.Tensor:
        tokens = [[*range(nodes)] for _ in self.utterances]
        parents = [chain_parents(nodes, parent, first) for _ in self.utterances]
        return self.decoder.extend(self.state, tokens, parents).hidden


class CachedCalls:
    """transformers'.

    Args:
        whisper: Its decoder.
        memory: (U, S, D) encoder output.
    """

    def __init__(self, whisper: WhisperDecoder, memory: torch.Tensor):
        self.whisper, self.memory = whisper, memory
        self.cache: EncoderDecoderCache | None = None
        self.call(CONTEXT_TOKENS)

    def call(self, nodes: int) -> None:
        tokens = torch.arange(nodes, device=self.memory.device).repeat(len(self.memory), 1)
        _, self.cache = self._extend(tokens, self.cache)

    def undo(self, nodes: int) -> None:
        self.cache.crop(-nodes)

    def _extend(
        self, tokens: torch.Tensor, cache: EncoderDecoderCache | None
    ) -> tuple[torch.Tensor, EncoderDecoderCache]:
        """Logits, and the cache with the tokens (U, T)."""
        outputs = self.whisper(
            tokens, encoder_hidden_states=self.memory, past_key_values=cache, use_cache=True
        )
        weight = self.whisper.embed_tokens.weight
        logits = torch.nn.functional.linear(outputs.last_hidden_state, weight)
        return logits, outputs.past_key_values


class CompiledCalls(CachedCalls):
    """The same with a cache of a fixed size and ``torch.compile``; the context is not compiled.

    Args:
        whisper: Its decoder.
        memory: (U, S, D) encoder output.
        nodes: Of a call.
        mode: Of ``torch.compile``.
    """

    def __init__(
        self, whisper: WhisperDecoder, memory: torch.Tensor, nodes: int, mode: str | None = None
    ):
        torch.compiler.reset()  # of each size it compiles anew, and refuses the ninth
        config = copy.deepcopy(whisper.config)
        config.num_hidden_layers = config.decoder_layers
        sizes = slot_bucket(CONTEXT_TOKENS + nodes), memory.size(1)
        self.whisper, self.memory = whisper, memory
        self.cache = EncoderDecoderCache(*(StaticCache(config, size) for size in sizes))
        self.call(CONTEXT_TOKENS)
        self._extend = torch.compile(self._extend, mode=mode, dynamic=False)

    def undo(self, nodes: int) -> None:
        for layer in self.cache.self_attention_cache.layers:
            layer.cumulative_length.sub_(nodes)


@torch.no_grad()
def call_seconds(calls: Calls, nodes: int, repeats: int, device: str) -> list[float]:
    """Seconds of ``repeats`` calls, each waited for, after some to warm up."""
    seconds = []
    for _ in range(WARM_UP_CALLS + repeats):
        wait_for(device)
        started = time.perf_counter()
        calls.call(nodes)
        wait_for(device)
        seconds.append(time.perf_counter() - started)
        calls.undo(nodes)
    return seconds[WARM_UP_CALLS:]
