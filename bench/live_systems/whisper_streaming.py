"""ufal/whisper_streaming with faster-whisper, without its voice activity controller (its default).

Its class for faster-whisper names ``cuda``; its own comment names the other devices.
"""

import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from live_systems.base import LiveSystem, Said
from live_systems.counted import CountedWhisper


class WhisperStreaming(LiveSystem):
    """``OnlineASRProcessor``, as its ``main`` calls it."""

    def load(self) -> None:
        sys.path.insert(0, str(Path(self.files.peers, "whisper_streaming")))
        import whisper_online
        from faster_whisper import WhisperModel

        system, beam_size = self, self.setting.options.get("beam_size", 5)

        class OnCPU(whisper_online.FasterWhisperASR):
            def load_model(self, modelsize=None, cache_dir=None, model_dir=None):
                options = {"compute_type": "int8", "cpu_threads": system.threads}
                model = WhisperModel(model_dir, device="cpu", **options)
                transcribe, model.model = model.transcribe, CountedWhisper(model.model, system)
                model.transcribe = lambda audio, **given: transcribe(
                    audio, **given | {"beam_size": beam_size}
                )
                return model

        self.asr = OnCPU("en", model_dir=self.files.ctranslate2)
        self.kind = whisper_online.OnlineASRProcessor

    def start(self) -> None:
        self.online = self.kind(self.asr)

    def update(self, samples: np.ndarray) -> Said:
        self.online.insert_audio_chunk(samples)
        text = ""
        with suppress(AssertionError):  # as its main does
            text = self.online.process_iter()[2]
        rest = self.online.to_flush(self.online.transcript_buffer.complete())
        return Said(text, rest[2])

    def finish(self) -> Said:
        return Said(self.online.finish()[2], "")
