"""ESPnet's commands with our searches: ``espnet transcribe``, ``espnet-mcp`` and ``espnet.load``.

ESPnet 202611 opens their models with ``espnet2.utils.pretrained.build_pretrained``, and calls what
it returns as its own s2t class.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.longform.segment import clamp_segments
from espnet_medusa.inference.packed_model import fetch_packed_model, open_packed_model
from espnet_medusa.inference.reader import build_audio_preprocess
from espnet_medusa.inference.s2t import S2TSpeech2Text
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.whisper_windows import why_not_long_form
from espnet_medusa.networks.whisper.pretrained import is_whisper
from espnet_medusa.networks.whisper.tokens import DETECT, TRANSCRIBE, TRANSLATE, language_code
from espnet_medusa.transcription.defaults import WINDOWS, with_defaults
from espnet_medusa.transcription.open_model import find_model
from espnet_medusa.transcription.recordings import AudioFileReader

NO_LANGUAGE, ASR = "<nolang>", "<asr>"
TASKS = {ASR: TRANSCRIBE, "<st_eng>": TRANSLATE}


class LongAudioModel:
    """A Whisper or another model of the asr task, called as ESPnet's s2t class.

    It has the defaults of ``espnet-medusa-transcribe``. ``options`` are those of ``Speech2Text``.
    """

    s2t_model = None  # whose tokens ESPnet would read

    def __init__(self, **options: Any):
        self.open = partial(Speech2Text, **options)
        self.by_task = {ASR: self.open()}

    def no_language(self) -> str:
        """Return the symbol of an unknown language."""
        return NO_LANGUAGE

    def decode_long(
        self,
        speech: str | Path | np.ndarray | torch.Tensor,
        lang_sym: str = NO_LANGUAGE,
        task_sym: str = ASR,
    ) -> list[tuple[float, float, str]]:
        """Return start and end in seconds and text of each segment.

        ``speech`` is a file, or (samples,) in [-1, 1] at the model's rate. Raise InputError if the
        audio cannot be read, or the model lacks the language or the task.
        """
        model = self._of_task(task_sym)
        if isinstance(speech, str | Path):
            preprocess = build_audio_preprocess(model.asr_train_args)
            speech = AudioFileReader(model.model.audio, preprocess).read_samples(str(speech), None)
        seconds = len(speech) / model.sample_rate_hz
        if why_not_long_form(model.model) is not None:
            return [(0.0, seconds, model(speech)[0][0])]
        language = language_code(lang_sym.strip("<>"))
        if lang_sym == NO_LANGUAGE:
            language = DETECT if model.whisper.tokens.languages else None
        options = WINDOWS | {"without_timestamps": False}
        segments = model.transcribe(speech, language, **options)
        segments = clamp_segments(segments, seconds)
        return [(segment.start_s, segment.end_s, segment.text.strip()) for segment in segments]

    def best_path(
        self, speech: np.ndarray | torch.Tensor, lang_sym: str = NO_LANGUAGE, task_sym: str = ASR
    ) -> list[tuple[str, list, list, str]]:
        """Return the text of (samples,) as the first and last of four fields."""
        segments = self.decode_long(speech, lang_sym, task_sym)
        text = " ".join(text for *_, text in segments)
        return [(text, [], [], text)]

    def _of_task(self, symbol: str) -> Speech2Text:
        """Return the model with Whisper's prompt for a task; each task opens it once."""
        if symbol not in self.by_task:
            if symbol not in TASKS or self.by_task[ASR].whisper is None:
                raise InputError(f"task: {symbol}; allowed with this model: {', '.join(TASKS)}")
            self.by_task[symbol] = self.open(task=TASKS[symbol])
        return self.by_task[symbol]


def open_s2t(model_tag: str, device: str = "cpu", **options: Any):
    """Open a packed model or a Whisper for calls of ESPnet's s2t class."""
    options = {"device": device, **options}
    if is_whisper(model_tag):
        config, weights, _ = find_model(model_tag)
        files = {"asr_train_config": config, "asr_model_file": weights}
    else:
        files = open_packed_model(fetch_packed_model(model_tag))
        if "s2t_model_file" in files:
            return S2TSpeech2Text(**options, **files)
    chosen = with_defaults(options, device, files.get("asr_model_file"))
    return LongAudioModel(**{name: chosen[name] for name in chosen.keys() - _OF_WINDOWS}, **files)


_OF_WINDOWS = {*WINDOWS, "batch_size"}

# Functions that open a model, by ESPnet's classes.
OPEN = {
    "espnet2.bin.asr_inference.Speech2Text": Speech2Text.from_pretrained,
    "espnet2.bin.s2t_inference.Speech2Text": open_s2t,
}
