"""openai-whisper, on converted weights: ``decode`` on memories, and on speech with ``transcribe``.

Three adaptations connect ``decode`` to memories and to any vocabulary. The model encodes inputs
without the shape of its own memory, so its encoder is the identity. ``get_tokenizer`` has only
Whisper's vocabularies, so it is replaced. Greedy search treats a row that begins with the end
symbol as finished. So the start symbol is an additional row of the embedding, a copy of the end
symbol's, which ``decode`` suppresses.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
import whisper
from safetensors.torch import load_file
from whisper import decoding
from whisper.model import ModelDimensions, Whisper

from contestants.base import (
    MemoryDecoder,
    Result,
    Segment,
    Stopwatch,
    Timed,
    Transcriber,
    pad_memories,
)
from contestants.ways import Way

RENAMED = (  # transformers' names, openai-whisper's
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
    """The tokenizer's symbols that ``DecodingTask`` reads; missing ones are the start symbol."""

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
        """Return no text: tokens are compared."""
        return ""


class MemoryOpenAI(MemoryDecoder):
    """Greedy and beam search; batches crash its beam search (20250625)."""

    def load(self) -> None:
        sizes = self.subject.sizes
        self.symbols = Symbols(sot=sizes.vocab_size, eot=self.subject.eos)
        self.model = Whisper(
            ModelDimensions(
                *(80, 1, sizes.hidden_size, 1, 0, sizes.vocab_size + 1, sizes.max_positions),
                *(sizes.hidden_size, sizes.attention_heads, sizes.layers),
            )
        )
        tensors = renamed(
            load_file(self.subject.hugging_face / "model.safetensors"), "model.decoder."
        )
        embedding = tensors["token_embedding.weight"]
        tensors["token_embedding.weight"] = torch.cat(
            [embedding, embedding[self.subject.eos][None]]
        )
        self.model.decoder.load_state_dict(tensors)
        self.model.encoder = torch.nn.Identity()
        self.model.eval()

    def decode(
        self, way: Way, names: Sequence[str], memories: Sequence[np.ndarray]
    ) -> list[Result]:
        options = decoding.DecodingOptions(
            language="en",  # no language detection
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
        return [Result(tokens=result.tokens) for result in results]


class OpenAIWhisper(Transcriber):
    """Greedy and beam search from samples."""

    def load(self) -> None:
        config = json.loads((self.subject.hugging_face / "config.json").read_text(encoding="utf-8"))
        sizes = ("d_model", "encoder_attention_heads", "encoder_layers")
        self.model = Whisper(
            ModelDimensions(
                *(config["num_mel_bins"], config["max_source_positions"]),
                *(config[name] for name in sizes),
                *(config["vocab_size"], config["max_target_positions"], config["d_model"]),
                *(config["decoder_attention_heads"], config["decoder_layers"]),
            )
        )
        tensors = load_file(self.subject.hugging_face / "model.safetensors")
        for part in ("encoder", "decoder"):
            getattr(self.model, part).load_state_dict(renamed(tensors, f"model.{part}."))
        self.model.eval()
        self._set_alignment_heads()

    def _set_alignment_heads(self) -> None:
        """Take the alignment heads of the generation config; without any, keep the default."""
        path = self.subject.hugging_face / "generation_config.json"
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if heads := config.get("alignment_heads"):
            mask = torch.zeros(self.model.dims.n_text_layer, self.model.dims.n_text_head)
            mask[[*zip(*heads, strict=True)]] = 1
            self.model.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)

    @torch.no_grad()
    def transcribe(self, way: Way, samples: np.ndarray) -> Timed:
        started = time.perf_counter()
        audio = whisper.pad_or_trim(samples)
        features = whisper.log_mel_spectrogram(audio, self.model.dims.n_mels)
        memory = self.model.embed_audio(features[None])
        encoded = time.perf_counter()
        options = whisper.DecodingOptions(
            language=self.subject.language,
            beam_size=way.beam_size if way.beam_size > 1 else None,
            without_timestamps=True,
            fp16=False,
        )
        (result,) = whisper.decode(self.model, memory, options)
        return Timed([Result(result.text)], encoded - started, time.perf_counter() - encoded)

    def transcribe_long(self, way: Way, samples: np.ndarray) -> Timed:
        """Transcribe with the program's defaults, except for the temperatures."""
        stopwatch, module = Stopwatch(), sys.modules["whisper.transcribe"]
        originals = module.log_mel_spectrogram, self.model.encoder.forward
        module.log_mel_spectrogram, self.model.encoder.forward = map(stopwatch.timed, originals)
        started = time.perf_counter()
        try:
            transcript = whisper.transcribe(
                self.model,
                samples,
                language=self.subject.language,
                beam_size=way.beam_size if way.beam_size > 1 else None,
                **({} if self.setup.fallback else {"temperature": 0.0}),
                word_timestamps=self.setup.words,
                fp16=False,
            )
        finally:
            module.log_mel_spectrogram, self.model.encoder.forward = originals
        seconds, encoder = time.perf_counter() - started, stopwatch.seconds
        segments = [
            Segment(
                float(segment["start"]), float(segment["end"]), segment["text"],
                segment["avg_logprob"],
                [(word["word"], float(word["start"]), float(word["end"]))
                 for word in segment.get("words", ())],
                segment["temperature"],
            )
            for segment in transcript["segments"]
        ]  # fmt: skip
        return Timed([Result.of_segments(segments)], encoder, seconds - encoder)


def renamed(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors below ``prefix`` (encoder or decoder) under openai-whisper's names."""
    last_norm = "ln_post." if "encoder" in prefix else "ln."
    selected = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            if name.startswith("layer_norm."):
                name = name.replace("layer_norm.", last_norm)
            for old, new in RENAMED:
                name = name.replace(old, new)
            selected[name] = tensor
    return selected
