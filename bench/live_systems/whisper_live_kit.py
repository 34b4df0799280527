"""WhisperLiveKit's online processors, without its server and its voice activity controller."""

from pathlib import Path

import numpy as np

from live_systems.base import LiveSystem, Said
from live_systems.counted import CountedWhisper, count_torch_calls

RATE_HZ = 16000


class WhisperLiveKit(LiveSystem):
    """What ``AudioProcessor`` calls for audio and at the end of a stream."""

    def load(self) -> None:
        import torch

        torch.set_num_threads(self.threads)
        from whisperlivekit.core import TranscriptionEngine, online_factory
        from whisperlivekit.whisper import _ALIGNMENT_HEADS

        # The name of a file of warm-up audio is empty: its default is downloaded.
        options = {"lan": "en", "vac": False, "warmup_file": "", **self.setting.options}
        options["min_chunk_size"] = self.setting.update_s
        self.agrees = options["backend_policy"] == "localagreement"
        if self.agrees:
            options |= {"backend": "faster-whisper", "model_path": self.files.ctranslate2}
        else:
            heads = _ALIGNMENT_HEADS[Path(self.files.openai).stem].decode()
            options |= {"custom_alignment_heads": heads, "model_path": self.files.openai}
            options["encoder_model_path"] = self.files.ctranslate2
        self.engine, self.online_factory = TranscriptionEngine(**options), online_factory
        asr = self.engine.asr
        if self.agrees:
            asr.model.model = CountedWhisper(asr.model.model, self)
        else:
            count_torch_calls(asr.shared_model.decoder, self)

    def start(self) -> None:
        self.online, self.added = self.online_factory(self.engine.args, self.engine.asr), 0

    def update(self, samples: np.ndarray) -> Said:
        self.added += len(samples)
        self.online.insert_audio_chunk(samples, self.added / RATE_HZ)
        return self._said(self.online.process_iter()[0])

    def finish(self) -> Said:
        ends = getattr(self.online, "finish", self.online.start_silence)
        return self._said(ends()[0])

    def _said(self, tokens) -> Said:
        text = self.online.asr.sep.join(token.text for token in tokens)
        return Said(text, (self.online.get_buffer().text or "") if self.agrees else None)
