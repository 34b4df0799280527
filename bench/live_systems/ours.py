"""Our live transcription, our transcription of a file, and ESPnet's windows."""

import importlib

import numpy as np

from live_systems.base import LiveSystem, Said

INT8 = {"encoder_precision": "int8", "decoder_precision": "int8"}


class Ours(LiveSystem):
    """``Speech2Text.live``."""

    def load(self) -> None:
        importlib.import_module("espnet_medusa.bin")  # before torch, as our commands do
        import torch

        from espnet_medusa import Speech2Text

        torch.set_num_threads(self.threads)
        options = {"search": "greedy", "beam_size": 1, "language": "en", **INT8}
        options |= self.setting.options.get("model", {})
        self.model = Speech2Text.from_pretrained(self.files.whisper, **options)

    def start(self) -> None:
        self.live, self.tentative = self.model.live(**self.setting.options["live"]), ""

    def update(self, samples: np.ndarray) -> Said:
        self.live.add(samples)
        return self._said(self.live.update())

    def finish(self) -> Said:
        return self._said(self.live.finish())

    def _said(self, update) -> Said:
        if update is None:
            return Said("", self.tentative)
        self.calls += update.statistics.decoder_calls
        self.tentative = "".join(word.text for word in update.tentative)
        return Said("".join(word.text for word in update.confirmed), self.tentative)


class WholeFile(Ours):
    """``Speech2Text.transcribe``, when all audio has arrived."""

    def start(self) -> None:
        self.pieces: list[np.ndarray] = []

    def update(self, samples: np.ndarray) -> Said:
        self.pieces.append(samples)
        return Said()

    def finish(self) -> Said:
        samples = np.concatenate(self.pieces)
        segments = self.model.transcribe(samples, **self.setting.options["file"])
        return Said("".join(segment.text for segment in segments))


class ESPnetWindows(Ours):
    """The windows of ESPnet 202611's ``live.py``, each decoded by our greedy search."""

    def load(self) -> None:
        super().load()
        from espnet2.bin.live import WINDOW_SECS, windows

        self.windows, self.size = windows, int(WINDOW_SECS * self.model.sample_rate_hz)

    def start(self) -> None:
        self.rest = np.zeros(0, np.float32)

    def update(self, samples: np.ndarray) -> Said:
        audio = np.concatenate([self.rest, samples])
        found = [*self.windows(iter([audio]), self.size, flush_partial=False)]
        self.rest = audio[len(found) * self.size :]
        return self._decode(found)

    def finish(self) -> Said:
        return self._decode([*self.windows(iter([self.rest]), self.size)])

    def _decode(self, found: list[np.ndarray]) -> Said:
        texts = []
        for window in found:
            (decoding,) = self.model.decode([window])
            self.calls += decoding.statistics.decoder_calls
            texts.append(" " + decoding.results[0][0].strip())
        return Said("".join(texts))
