"""Time single decoder calls in the middle of a sentence: ours, and transformers' with its cache.

A call evaluates a chain of nodes and their logits; afterwards the cache drops the nodes.
"""

import copy
import time

import torch
from machine import wait_for
from transformers.cache_utils import EncoderDecoderCache, StaticCache
from transformers.models.whisper.modeling_whisper import WhisperDecoder

from espnet_medusa.decoding.runtime.graph_storage import slot_bucket
from espnet_medusa.decoding.tree.token_tree import ROOT, chain_parents
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder
from espnet_medusa.inference.experiment import NoInitialization
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder

CONTEXT_TOKENS = 36  # half of a sentence
WARM_UP_CALLS = 5  # the first ones record CUDA graphs or compile


class TreeCalls:
    """Calls of our runtime on encoder output (U, S, D), with ``CONTEXT_TOKENS`` in the cache."""

    def __init__(self, decoder: TreeDecoder, encoder_out: torch.Tensor):
        self.decoder, self.utterances = decoder, range(len(encoder_out))
        lengths = torch.full((len(encoder_out),), encoder_out.size(1), device=encoder_out.device)
        self.state = decoder.start(encoder_out, lengths, with_heads=False)
        self._extend(CONTEXT_TOKENS, ROOT, 0)

    def call(self, nodes: int) -> None:
        """Evaluate ``nodes`` more tokens of each utterance."""
        hidden = self._extend(nodes, CONTEXT_TOKENS - 1, CONTEXT_TOKENS)
        self.decoder.logits(hidden)

    def undo(self, nodes: int) -> None:
        """Drop them from the cache."""
        self.decoder.keep(self.state, [[*range(CONTEXT_TOKENS)] for _ in self.utterances])

    def _extend(self, nodes: int, parent: int, first: int) -> torch.Tensor:
        tokens = [[*range(nodes)] for _ in self.utterances]
        parents = [chain_parents(nodes, parent, first) for _ in self.utterances]
        return self.decoder.extend(self.state, tokens, parents).hidden


class CachedCalls:
    """The same calls of transformers' decoder."""

    def __init__(self, whisper: WhisperDecoder, encoder_out: torch.Tensor):
        self.whisper, self.encoder_out = whisper, encoder_out
        self.cache: EncoderDecoderCache | None = None
        self.call(CONTEXT_TOKENS)

    def call(self, nodes: int) -> None:
        tokens = torch.arange(nodes, device=self.encoder_out.device).repeat(
            len(self.encoder_out), 1
        )
        _, self.cache = self._extend(tokens, self.cache)

    def undo(self, nodes: int) -> None:
        self.cache.crop(-nodes)

    def _extend(
        self, tokens: torch.Tensor, cache: EncoderDecoderCache | None
    ) -> tuple[torch.Tensor, EncoderDecoderCache]:
        """Return logits, and the cache extended by the tokens (U, T)."""
        outputs = self.whisper(
            tokens, encoder_hidden_states=self.encoder_out, past_key_values=cache, use_cache=True
        )
        weight = self.whisper.embed_tokens.weight
        logits = torch.nn.functional.linear(outputs.last_hidden_state, weight)
        return logits, outputs.past_key_values


def transformers_decoder(decoder: WhisperMedusaDecoder) -> WhisperDecoder:
    """Build transformers' decoder with the weights of ours."""
    with NoInitialization():  # seconds for a large decoder
        whisper = WhisperDecoder(decoder.whisper.config).eval()
    whisper.load_state_dict(decoder.whisper.state_dict())
    return whisper


class CompiledCalls(CachedCalls):
    """Compiled calls of ``nodes`` with a static cache, after the context was evaluated."""

    def __init__(
        self,
        whisper: WhisperDecoder,
        encoder_out: torch.Tensor,
        nodes: int,
        mode: str | None = None,
    ):
        torch.compiler.reset()  # else torch compiles at most eight sizes
        config = copy.deepcopy(whisper.config)
        config.num_hidden_layers = config.decoder_layers
        sizes = slot_bucket(CONTEXT_TOKENS + nodes), encoder_out.size(1)
        self.whisper, self.encoder_out = whisper, encoder_out
        self.cache = EncoderDecoderCache(*(StaticCache(config, size) for size in sizes))
        self.call(CONTEXT_TOKENS)
        self._extend = torch.compile(self._extend, mode=mode, dynamic=False)

    def undo(self, nodes: int) -> None:
        for layer in self.cache.self_attention_cache.layers:
            layer.cumulative_length.sub_(nodes)


@torch.no_grad()
def call_seconds(
    calls: TreeCalls | CachedCalls, nodes: int, repeats: int, device: str
) -> list[float]:
    """Return seconds of ``repeats`` synchronized calls after warm-up."""
    seconds = []
    for _ in range(WARM_UP_CALLS + repeats):
        wait_for(device)
        started = time.perf_counter()
        calls.call(nodes)
        wait_for(device)
        seconds.append(time.perf_counter() - started)
        calls.undo(nodes)
    return seconds[WARM_UP_CALLS:]
