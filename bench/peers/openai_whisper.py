"""openai-whisper's ``decode`` on weights converted from ours.

Three things stand between its public ``decode`` and our memory and vocabulary:
its model encodes what does not look like its own memory, so the encoder is the identity;
``get_tokenizer`` knows Whisper's vocabularies alone, so ``decode`` gets ours in its place;
greedy search takes a row that begins with the end symbol for finished, so the start symbol is one
more row of the embedding, a copy of the end symbol's, which ``decode`` never lets win.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from safetensors.torch import load_file
from whisper import decoding
from whisper.model import ModelDimensions, Whisper

from peers.contestant import Contestant, Decoded, Setup
from peers.memories import pad_memories
from peers.subject import HUGGING_FACE, Subject
from peers.way import Way

DECODER = "model.decoder."
RENAMED = (  # transformers' names, its own
    ("embed_tokens.", "token_embedding."),
    ("embed_positions.weight", "positional_embedding"),
    ("layers.", "blocks."),
    ("encoder_attn_layer_norm.", "cross_attn_ln."),
    ("encoder_attn.", "cross_attn."),
    ("self_attn_layer_norm.", "attn_ln."),
    ("self_attn.", "attn."),
    ("final_layer_norm.", "mlp_ln."),
    ("q_proj.", "query."),
    ("k_proj.", "key."),
    ("v_proj.", "value."),
    ("out_proj.", "out."),
    ("fc1.", "mlp.0."),
    ("fc2.", "mlp.2."),
)


@dataclass(frozen=True)
class Symbols:
    """What ``DecodingTask`` asks of a tokenizer; symbols that we lack are the start symbol."""

    sot: int
    eot: int
    no_speech: None = None

    @property
    def sot_sequence(self) -> tuple[int, ...]:
        return (self.sot,)

    sot_sequence_including_notimestamps = sot_sequence

    @property
    def transcribe(self) -> int:
        return self.sot

    translate = sot_prev = sot_lm = transcribe

    def decode(self, tokens: Sequence[int]) -> str:
        """No text: tokens are compared."""
        return ""


class OpenAIWhisper(Contestant):
    """Greedy and beam search; several inputs at once crash its beam search (20250625)."""

    def __init__(self, subject: Subject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        sizes = subject.sizes
        self.symbols = Symbols(sot=sizes.vocab_size, eot=subject.eos)
        self.model = Whisper(
            ModelDimensions(
                *(80, 1, sizes.hidden_size, 1, 0, sizes.vocab_size + 1, sizes.max_positions),
                *(sizes.hidden_size, sizes.attention_heads, sizes.layers),
            )
        )
        self.model.decoder.load_state_dict(_read_weights(subject))
        self.model.encoder = torch.nn.Identity()
        self.model.eval()

    def decode(self, way: Way, names: Sequence[str], memories: Sequence[np.ndarray]) -> Decoded:
        options = decoding.DecodingOptions(
            language="en",  # or it would ask the model which
            sample_len=self.subject.max_tokens,
            beam_size=way.beam_size if way.beam_size > 1 else None,
            length_penalty=0.0,  # rank by score alone, as all others here
            suppress_tokens=[self.symbols.sot],
            suppress_blank=False,
            without_timestamps=True,
            fp16=False,
        )
        memory = torch.from_numpy(pad_memories(memories))
        with mock.patch.object(decoding, "get_tokenizer", lambda *_, **__: self.symbols):
            results = decoding.decode(self.model, memory, options)
        return Decoded([result.tokens for result in results])


def renamed(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Tensors of encoder or decoder under openai-whisper's names.

    Args:
        tensors: By transformers' names.
        prefix: Of the half to take.
    """
    last_norm = "ln_post." if "encoder" in prefix else "ln."
    found = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            if name.startswith("layer_norm."):
                name = name.replace("layer_norm.", last_norm)
            for theirs, own in RENAMED:
                name = name.replace(theirs, own)
            found[name] = tensor
    return found


def _read_weights(subject: Subject) -> dict[str, torch.Tensor]:
    """The decoder's weights under openai-whisper's names, a start symbol behind the vocabulary."""
    weights = renamed(load_file(subject.folder / HUGGING_FACE / "model.safetensors"), DECODER)
    embedding = weights["token_embedding.weight"]
    weights["token_embedding.weight"] = torch.cat([embedding, embedding[subject.eos][None]])
    return weights


build = OpenAIWhisper
