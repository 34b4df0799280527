"""openai-whisper on converted weights: ``decode`` of utterances, ``transcribe`` of recordings."""

import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import whisper
from safetensors.torch import load_file
from whisper.model import AudioEncoder, ModelDimensions, TextDecoder, Whisper

from contestants.base import Result, Segment, Stopwatch, Timed, Transcriber
from contestants.ways import Way
from espnet_medusa.networks.whisper.pretrained import OPENAI_NAMES

WEIGHTS = "model.safetensors"


def load_whisper(hugging_face: Path) -> Whisper:
    """Load a Whisper of transformers' format in float32."""
    config = json.loads((hugging_face / "config.json").read_text(encoding="utf-8"))
    names = (
        "num_mel_bins", "max_source_positions", "d_model", "encoder_attention_heads",
        "encoder_layers", "vocab_size", "max_target_positions", "d_model",
        "decoder_attention_heads", "decoder_layers",
    )  # fmt: skip
    model = Whisper(ModelDimensions(*(config[name] for name in names)))
    tensors = load_file(hugging_face / WEIGHTS)
    for half in (model.encoder, model.decoder):
        half.load_state_dict(renamed(tensors, half))
    return model.eval()


def renamed(
    tensors: Mapping[str, torch.Tensor], half: AudioEncoder | TextDecoder
) -> dict[str, torch.Tensor]:
    """Return transformers' tensors under the names of openai-whisper's encoder or decoder."""
    prefix, selected = f"model.{'en' if isinstance(half, AudioEncoder) else 'de'}coder.", {}
    for name in half.state_dict():
        theirs = name
        for pattern, replacement in OPENAI_NAMES:
            theirs = re.sub(pattern, replacement, theirs)
        selected[name] = tensors[prefix + theirs]
    return selected


class OpenAIWhisper(Transcriber):
    """Greedy and beam search from samples."""

    def load(self) -> None:
        self.model = load_whisper(self.subject.hugging_face)
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
        encoder_out = self.model.embed_audio(features[None])
        encoded = time.perf_counter()
        options = whisper.DecodingOptions(
            language=self.subject.language, without_timestamps=True, fp16=False,
            beam_size=way.beam_size if way.beam_size > 1 else None,
        )  # fmt: skip
        (result,) = whisper.decode(self.model, encoder_out, options)
        return Timed([Result(result.text)], encoded - started, time.perf_counter() - encoded)

    def transcribe_long(self, way: Way, samples: np.ndarray) -> Timed:
        """Transcribe with the program's defaults, except for the temperatures."""
        stopwatch, module = Stopwatch(), sys.modules["whisper.transcribe"]
        originals = module.log_mel_spectrogram, self.model.encoder.forward
        module.log_mel_spectrogram, self.model.encoder.forward = map(stopwatch.timed, originals)
        started = time.perf_counter()
        try:
            transcript = whisper.transcribe(
                self.model, samples, language=self.subject.language, fp16=False,
                beam_size=way.beam_size if way.beam_size > 1 else None,
                **({} if self.setup.fallback else {"temperature": 0.0}),
                word_timestamps=self.setup.words,
            )  # fmt: skip
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
