"""Decode the drafters of a plan in one process; each encoder runs once per batch."""

import time
from collections.abc import Mapping

import torch
from inputs import Listed
from plan import Row

from contestants.base import Result, Timed
from contestants.shared_weights import SharedWeights
from contestants.ways import Way
from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.runtime.process import keep_freed_memory
from espnet_medusa.inference.audio_batch import AudioBatch
from espnet_medusa.inference.decoding_model import DecodingModel
from espnet_medusa.inference.speech2text import Speech2Text


class PlanClient:
    """Decodes utterances with all rows of a plan, from the output of shared encoders.

    Utterances, by id, are read when they are decoded.
    """

    def __init__(self, listed: Mapping[str, Listed], rows: Mapping[Way, Row]):
        self.listed, shared = listed, SharedWeights()
        self.models: dict[tuple[str, str], Speech2Text] = {}
        for way, row in rows.items():
            key = way.search, way.contestant
            if key in self.models:  # another batch size
                continue
            drafter, options = row.drafter, row.options
            files = drafter.config, drafter.weights
            self.models[key] = shared.open(*files, drafter.window, **options)
            if self.models[key].search is None:
                raise InputError(f"{row.name}: ESPnet's own search decodes {drafter.experiment}")
        keep_freed_memory()  # as asr_inference does
        self.names: list[str] = []
        self.audio: AudioBatch | None = None
        self.encoded: dict[int, tuple[torch.Tensor, torch.Tensor, float]] = {}

    def too_long(self) -> list[str]:
        """Return the utterances that are longer than a model's window."""
        windows = [model.window_s for model in self.models.values() if model.window_s is not None]
        if not windows:
            return []
        return [name for name, one in self.listed.items() if one.read().seconds > min(windows)]

    @torch.no_grad()
    def decode(self, way: Way, names: list[str]) -> Timed:
        """Decode utterances together; the draft model's encoder counts as drafting."""
        model = self.models[way.search, way.contestant].model
        encoder_out, frames, encoder_seconds = self._encode(model, names)
        prompt = model.make_prompts(encoder_out, frames, [None] * len(frames))
        started = time.perf_counter()
        inputs = model.draft_inputs(self.audio.branch(), prompt.tolist())
        reading = (time.perf_counter() - started) / len(names)
        states = model.search(encoder_out, frames, prompt, model.limits, inputs)
        seconds = time.perf_counter() - started
        for state in states:
            state.statistics.draft_seconds += reading
        scorers = model.search.strategy.scoring.names
        results = []
        for state, tokens in zip(states, prompt.tolist(), strict=True):
            nbest = model.writer.write(state, tokens, scorers).results
            text = (nbest[0][0] or "") if nbest else ""
            nbest = [([*ids], float(hypothesis.score)) for _, _, ids, hypothesis in nbest]
            results.append(Result(text, nbest=nbest, counts=vars(state.statistics)))
        return Timed(results, encoder_seconds, seconds)

    def _encode(
        self, model: DecodingModel, names: list[str]
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Memory, frames and seconds of a batch; computed once for each encoder."""
        if names != self.names:
            self.names, self.encoded = names, {}
            self.audio = model.batch([self.listed[name].read().speech for name in names])
        key = id(model.encoder)
        if key not in self.encoded:
            started = time.perf_counter()
            encoder_out, frames = model.encode(self.audio)
            self.encoded[key] = encoder_out, frames, time.perf_counter() - started
        return self.encoded[key]

    def end(self) -> None:
        """End nothing: there is no process."""
