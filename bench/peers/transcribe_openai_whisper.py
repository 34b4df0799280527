"""openai-whisper's ``decode`` and ``transcribe``, on the same weights under its names."""

import json
import sys
import time

import numpy as np
import torch
import whisper
from safetensors.torch import load_file
from whisper.model import ModelDimensions, Whisper

from peers.contestant import Setup
from peers.openai_whisper import renamed
from peers.transcriber import LongTask, LongTranscribed, Piece, Stopwatch, Transcribed, Transcriber
from peers.way import Way
from peers.whisper_subject import WhisperSubject


class OpenAIWhisper(Transcriber):
    """Greedy and beam search."""

    def __init__(self, subject: WhisperSubject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        config = json.loads((subject.hugging_face / "config.json").read_text(encoding="utf-8"))
        sizes = ("d_model", "encoder_attention_heads", "encoder_layers")
        self.model = Whisper(
            ModelDimensions(
                *(config["num_mel_bins"], config["max_source_positions"]),
                *(config[name] for name in sizes),
                *(config["vocab_size"], config["max_target_positions"], config["d_model"]),
                *(config["decoder_attention_heads"], config["decoder_layers"]),
            )
        )
        tensors = load_file(subject.hugging_face / "model.safetensors")
        for part in ("encoder", "decoder"):
            getattr(self.model, part).load_state_dict(renamed(tensors, f"model.{part}."))
        self.model.eval()
        self._take_alignment_heads()

    def _take_alignment_heads(self) -> None:
        """Those of the weights, where they are known; or its own default."""
        path = self.subject.hugging_face / "generation_config.json"
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if heads := config.get("alignment_heads"):
            mask = torch.zeros(self.model.dims.n_text_layer, self.model.dims.n_text_head)
            mask[[*zip(*heads, strict=True)]] = 1
            self.model.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)

    @torch.no_grad()
    def transcribe(self, way: Way, samples: np.ndarray) -> Transcribed:
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
        return Transcribed(result.text, encoded - started, time.perf_counter() - encoded)

    def transcribe_long(self, way: Way, samples: np.ndarray, task: LongTask) -> LongTranscribed:
        """Its own defaults, but for the temperatures."""
        stopwatch, module = Stopwatch(), sys.modules["whisper.transcribe"]
        plain = module.log_mel_spectrogram, self.model.encoder.forward
        module.log_mel_spectrogram, self.model.encoder.forward = map(stopwatch.timed, plain)
        started = time.perf_counter()
        try:
            found = whisper.transcribe(
                self.model,
                samples,
                language=self.subject.language,
                beam_size=way.beam_size if way.beam_size > 1 else None,
                **({} if task.fallback else {"temperature": 0.0}),
                word_timestamps=task.words,
                fp16=False,
            )
        finally:
            module.log_mel_spectrogram, self.model.encoder.forward = plain
        seconds, encoder = time.perf_counter() - started, stopwatch.seconds
        pieces = [
            Piece(
                float(one["start"]), float(one["end"]), one["text"], one["avg_logprob"],
                [(word["word"], float(word["start"]), float(word["end"]))
                 for word in one.get("words", ())],
                one["temperature"],
            )
            for one in found["segments"]
        ]  # fmt: skip
        return LongTranscribed(pieces, encoder, seconds - encoder)


build = OpenAIWhisper
