"""ufal/SimulStreaming with its own copy of openai-whisper, without its voice activity controller.

The weights may have been converted, so their checksum is not openai-whisper's, with which its
loader would compare it.
"""

import sys
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path

import numpy as np

from live_systems.base import LiveSystem, Said
from live_systems.counted import count_torch_calls


class SimulStreaming(LiveSystem):
    """``SimulWhisperOnline`` with the defaults of its command."""

    def load(self) -> None:
        import torch

        torch.set_num_threads(self.threads)
        sys.path.insert(0, str(Path(self.files.peers, "SimulStreaming")))
        import simulstreaming_whisper as command
        from simulstreaming.whisper.simul_whisper import simul_whisper, whisper
        from simulstreaming.whisper.whisper_streaming.whisper_online_main import processor_args

        def load_model(name: str, download_root: str):
            model = whisper.load_model(self.files.openai, device="cpu")
            model.set_alignment_heads(whisper._ALIGNMENT_HEADS[name])
            return model

        simul_whisper.load_model = load_model
        parser = ArgumentParser()
        processor_args(parser)
        command.simulwhisper_args(parser)
        words = ["--language", "en", "--log-level", "ERROR", "--model_path", self.files.openai]
        words += ["--min-chunk-size", str(self.setting.update_s)]
        asr, self.online = command.simul_asr_factory(parser.parse_args(words))
        count_torch_calls(asr.model.model.decoder, self)

    def start(self) -> None:
        self.online.init()

    def update(self, samples: np.ndarray) -> Said:
        self.online.insert_audio_chunk(samples)
        found = {}
        with suppress(AssertionError):  # as its main does
            found = self.online.process_iter()
        return Said(found.get("text", ""))

    def finish(self) -> Said:
        return Said(self.online.finish().get("text", ""))
