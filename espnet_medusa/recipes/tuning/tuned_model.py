"""The model of a tuning: its search, the sources of its drafts, and its encoder."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from espnet_medusa.decoding.search.drafters import DraftSources
from espnet_medusa.decoding.search.search_options import CTC_MODEL, LengthLimits
from espnet_medusa.decoding.tree.proposer import DraftInput, Proposer
from espnet_medusa.inference.batches import Utterance
from espnet_medusa.inference.decoding_model import DraftModelOnDemand, draft_sources
from espnet_medusa.inference.espnet_search import espnet_sources, pad_inputs
from espnet_medusa.inference.s2t import S2TDraftModelOnDemand, S2TSpeech2Text
from espnet_medusa.inference.speech2text import Speech2Text


class DraftModelFiles(NamedTuple):
    name: str
    weights: str | None = None

    def keys(self) -> dict[str, str]:
        keys = {"draft_model": self.name, "draft_model_file": self.weights}
        return {name: value for name, value in keys.items() if value is not None}


class SearchInputs(NamedTuple):
    audio: Any  # for ``DraftReader.read``
    encoder_out: torch.Tensor  # (U, S, D) encoder output
    frames: torch.Tensor  # lengths (U,); with merged padding: frames of each row (U, S)
    prompts: Sequence[torch.Tensor]  # U times (P,)


class DraftReader(NamedTuple):
    """Computes a drafter's own inputs."""

    read: Callable[[SearchInputs], list[DraftInput] | None]
    window_s: float | None  # the longest audio that it takes; None: no limit


class TunedModel(ABC):
    """A model with the search to tune.

    Draft models are opened by a function that ``opener`` returns. It raises InputError if there is
    no such model, or if it does not fit.
    """

    def __init__(
        self,
        speech2text: Speech2Text | S2TSpeech2Text,
        network: torch.nn.Module,
        sample_rate_hz: int,
    ):
        self.speech2text, self.search = speech2text, speech2text.search
        self.nbest, self.dtype = speech2text.nbest, speech2text.dtype
        self.limits = LengthLimits(speech2text.maxlenratio, speech2text.minlenratio)
        self.tokens, self.eos = network.token_list, network.eos
        self.sample_rate_hz = sample_rate_hz

    @abstractmethod
    def sources(self, opener: Callable[[], Proposer] | None = None) -> DraftSources:
        """Return the sources of drafts other than heads."""

    @abstractmethod
    def opener(self, files: DraftModelFiles) -> Callable[[], Proposer]:
        """Return a function that opens a draft model."""

    @abstractmethod
    def reader(self, opener: Callable[[], Proposer] | None = None) -> DraftReader | None:
        """Return the reader of CTC drafts, or of the draft model that ``opener`` has opened.

        None: the drafter uses the encoder output.
        """

    @abstractmethod
    def encode(self, utterances: Sequence[Utterance]) -> SearchInputs:
        """Encode U utterances."""


class TunedASR(TunedModel):
    def __init__(self, speech2text: Speech2Text):
        super().__init__(speech2text, speech2text.asr_model, speech2text.sample_rate_hz)
        self.model, self.options = speech2text.model, speech2text.model.options

    def sources(self, opener=None) -> DraftSources:
        return draft_sources(self.model, opener)

    def opener(self, files: DraftModelFiles) -> DraftModelOnDemand:
        options = replace(self.options, draft_vocab_size=None, drafter=CTC_MODEL, **files.keys())
        return DraftModelOnDemand(replace(self.model, options=options))

    def reader(self, opener=None) -> DraftReader:
        model = self.model if opener is None else opener.model.with_draft_model(opener.opened)

        def read(inputs: SearchInputs) -> list[DraftInput] | None:
            # With its own cache, a drafter does not reuse the others' results.
            prompts = [row.tolist() for row in inputs.prompts]
            return model.draft_inputs(inputs.audio.branch(), prompts)

        return DraftReader(read, model.audio.window_s)

    def encode(self, utterances: Sequence[Utterance]) -> SearchInputs:
        audio = self.model.batch([utterance.speech for utterance in utterances])
        encoder_out, frames = self.model.encode(audio)
        languages = [utterance.language for utterance in utterances]
        prompts = self.model.make_prompts(encoder_out, frames, languages)
        return SearchInputs(audio, encoder_out, frames, prompts)


class TunedS2T(TunedModel):
    """A model of the s2t task; language and task are those of the options."""

    def __init__(self, speech2text: S2TSpeech2Text):
        super().__init__(speech2text, speech2text.s2t_model, speech2text.preprocessor_conf["fs"])
        self.options = speech2text.options

    def sources(self, opener=None) -> DraftSources:
        network = self.speech2text.s2t_model
        return espnet_sources(network.decoder, network.ctc, opener)

    def opener(self, files: DraftModelFiles) -> S2TDraftModelOnDemand:
        return S2TDraftModelOnDemand(self.speech2text, *files)

    def reader(self, opener=None) -> DraftReader | None:
        if opener is None:
            return None

        def read(inputs: SearchInputs) -> list[DraftInput]:
            sizes, prompts = inputs.frames.tolist(), [row.tolist() for row in inputs.prompts]
            encoder_outs = [row[:size] for row, size in zip(inputs.encoder_out, sizes, strict=True)]
            return opener.draft_inputs(inputs.audio, [*zip(encoder_outs, prompts, strict=True)])

        return DraftReader(read, None)

    def encode(self, utterances: Sequence[Utterance]) -> SearchInputs:
        speeches = [utterance.speech for utterance in utterances]
        self.speech2text.encode(speeches, [{}] * len(speeches))
        encoder_outs, prompts = zip(*self.speech2text.beam_search.inputs, strict=True)
        return SearchInputs(speeches, *pad_inputs(encoder_outs, prompts))
