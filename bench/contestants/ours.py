"""Our searches and runtime on memories, and ``Speech2Text`` on speech."""

import time
from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from decoder_calls import TreeCalls, call_seconds
from espnet2.asr.ctc import CTC as CTCBranch

from contestants.base import (
    Memories,
    MemoryDecoder,
    Result,
    Segment,
    Timed,
    Transcriber,
    pad_encoder_outs,
    until_end,
)
from contestants.shared_weights import SharedWeights
from contestants.subjects import CTC_FILE, DRAFT_FILE, OURS_FILE, MemorySubject
from contestants.ways import BASELINE, CTC, CTC_HEADS, HEADS, MODEL, Way
from espnet_medusa.data.files.checkpoint import load_weights
from espnet_medusa.decoding.draft.model import DraftModelProposer
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.process import keep_freed_memory
from espnet_medusa.decoding.search.beam import BeamState
from espnet_medusa.decoding.search.build import SearchModel, build_beam, build_greedy
from espnet_medusa.decoding.search.drafters import DraftSources
from espnet_medusa.decoding.search.greedy import GreedyState
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.search_options import FIXED, LengthLimits, SearchOptions
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import LongRecording
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.multi_token_decoder import TOKEN_COUNTS
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.transcription.defaults import with_defaults

BEAM_DEPTH = 2  # of heads; by default the package's heads do not draft in beams


def default_options(long_form: bool) -> dict[str, object]:
    """Return defaults of ``espnet-medusa-transcribe``: those of long audio, or the others."""
    names = {field.name for field in fields(LongFormOptions)}
    chosen = with_defaults({}, "cpu")
    return {name: value for name, value in chosen.items() if (name in names) == long_form}


def load_decoder(subject: MemorySubject, with_heads: bool = True) -> WhisperMedusaDecoder:
    """Load the decoder that ESPnet trains."""
    conf, weights = subject.decoder_conf, load_weights(subject.folder / OURS_FILE)
    if not with_heads:
        conf = conf | {"heads": "none", "heads_conf": {}}
        left_out = ("heads.", TOKEN_COUNTS)
        weights = {name: one for name, one in weights.items() if not name.startswith(left_out)}
    return _build_decoder(subject, conf, weights)


def _build_decoder(subject: MemorySubject, conf: dict, weights: dict) -> WhisperMedusaDecoder:
    decoder = WhisperMedusaDecoder(subject.sizes.vocab_size, subject.sizes.hidden_size, **conf)
    decoder.load_state_dict(weights)
    return decoder.eval()


def max_length_ratio(subject: MemorySubject) -> float:
    """Return ESPnet's maxlenratio: the fixed number of tokens, or 0 for end detection."""
    return -float(subject.fixed_tokens or 0)


class MemoryOurs(MemoryDecoder):
    """Greedy and beam search, with and without drafts."""

    def load(self) -> None:
        torch.set_num_threads(self.setup.threads)
        self.decoder = load_decoder(self.subject)
        keep_freed_memory()  # as asr_inference does
        self.searches: dict[tuple[str, str], Search] = {}

    def search(self, way: Way) -> Search:
        """Return the search of a way, which is built on first use."""
        key = way.search, way.drafts
        if key in self.searches:
            return self.searches[key]
        greedy, drafter = way.beam_size == 1, way.drafts or None
        kind, depth = "greedy" if greedy else "beam", 0 if way.drafts == BASELINE else None
        options = SearchOptions(search=kind, drafter=drafter, draft_depth=depth, lookahead=FIXED)
        sources = DraftSources(
            ctc=self.ctc.log_softmax if drafter in (CTC, CTC_HEADS) else None,
            blank=self.subject.ctc_blank or 0,
            model=self._draft_model if drafter == MODEL else None,
            frequent_tokens=self.decoder.draft_vocabulary,
        )
        sizes, device = (self.subject.sizes.vocab_size, self.subject.eos), torch.device("cpu")
        runtime = build_runtime(self.decoder, self.weights)
        model = SearchModel(runtime, *sizes, device, sources=sources)
        if greedy:
            self.searches[key] = build_greedy(options, model)
        else:
            self.searches[key] = build_beam(options, model, way.beam_size, nbest=1)
        return self.searches[key]

    @cached_property
    def ctc(self) -> CTCBranch:
        """The CTC branch in float32."""
        ctc = CTCBranch(self.subject.sizes.vocab_size, self.subject.sizes.hidden_size)
        ctc.ctc_lo.load_state_dict(load_weights(self.subject.folder / CTC_FILE))
        return ctc.eval()

    def _draft_model(self) -> DraftModelProposer:
        """Build the draft model with the decoder's type of weights."""
        weights = load_weights(self.subject.folder / DRAFT_FILE)
        decoder = _build_decoder(self.subject, self.subject.draft_conf, weights)
        runtime = build_runtime(decoder, self.weights)
        return DraftModelProposer(runtime, self.subject.eos)

    @torch.no_grad()
    def decode(self, way: Way, names: Sequence[str], encoder_outs: Memories) -> list[Result]:
        eos, frames = self.subject.eos, torch.tensor([*map(len, encoder_outs)])
        prompt = torch.full((len(encoder_outs), 1), eos)
        limits = LengthLimits(max_length_ratio(self.subject))
        states = self.search(way)(
            torch.from_numpy(pad_encoder_outs(encoder_outs)), frames, prompt, limits
        )
        return [
            Result(tokens=until_end(_tokens(state), eos), counts=vars(state.statistics))
            for state in states
        ]

    @torch.no_grad()
    def time_calls(self, encoder_out: np.ndarray, nodes: int, repeats: int) -> list[float]:
        """Return seconds of decoder calls with a chain of new nodes and their logits."""
        decoder = self.search(Way("ours", self.weights, "greedy")).decoder
        calls = TreeCalls(decoder, torch.from_numpy(encoder_out)[None])
        return call_seconds(calls, nodes, repeats, "cpu")


def _tokens(state: GreedyState | BeamState) -> list[int]:
    if isinstance(state, GreedyState):
        return state.tokens
    return state.ended[0].tokens if state.ended else []


class Ours(Transcriber):
    """``Speech2Text`` with one set of weights for all its searches."""

    def load(self) -> None:
        keep_freed_memory()  # as asr_inference does
        self.shared = SharedWeights()
        self.models: dict[tuple[str, str], Speech2Text] = {}

    def model(self, way: Way) -> Speech2Text:
        """Return the model of a way, which is opened on first use."""
        key = way.search, way.drafts
        if key not in self.models:
            # Word times need weights that SharedWeights releases.
            open_model = Speech2Text if self.subject.long else self.shared.open
            paths = Path(self.subject.config), Path(self.subject.weights)
            self.models[key] = open_model(*paths, **self.options(way))
        return self.models[key]

    def options(self, way: Way) -> dict[str, object]:
        """Return the decode options; beams end as openai-whisper's do."""
        if way.by_default:
            return default_options(long_form=False) | {"language": self.subject.language}
        beam = {"beam_size": way.beam_size, "patience": 1.0}
        search = {"search": "greedy"} if way.beam_size == 1 else beam
        drafts = (
            {"draft_depth": 0}
            if way.drafts == BASELINE
            else {"drafter": way.drafts, "lookahead": FIXED}
        )
        if way.drafts == MODEL:
            drafts["draft_model"] = self.subject.draft_model
        if way.drafts == HEADS and way.beam_size > 1:
            drafts["draft_depth"] = BEAM_DEPTH
        options = {"ctc_weight": 0.0, "lm_weight": 0.0, "decoder_precision": self.weights}
        return options | search | drafts

    def transcribe(self, way: Way, samples: np.ndarray) -> Timed:
        model = self.model(way)
        started = time.perf_counter()
        results = model(samples)
        seconds = time.perf_counter() - started
        text = (results[0][0] or "") if results else ""
        return self._timed(Result(text, counts=vars(model.statistics)), seconds)

    def transcribe_long(self, way: Way, samples: np.ndarray) -> Timed:
        """Transcribe by openai-whisper's defaults; batches by faster-whisper's batched defaults."""
        model = self.model(way)
        if way.by_default:
            return self._transcribe_by_default(model, samples)
        batched = {"vad_filter": True, "without_timestamps": True, "batch_size": way.batch_size}
        started = time.perf_counter()
        segments = [
            Segment(
                segment.start_s, segment.end_s, segment.text, segment.average_log_probability,
                [(word.text, word.start_s, word.end_s) for word in segment.words],
                segment.temperature,
            )
            for segment in model.transcribe(
                samples,
                **({} if self.setup.fallback else {"temperature_increment_on_fallback": None}),
                word_timestamps=self.setup.words,
                **(batched if way.batch_size > 1 else {}),
            )
        ]  # fmt: skip
        seconds = time.perf_counter() - started
        return self._timed(Result.of_segments(segments, vars(model.statistics)), seconds)

    def _transcribe_by_default(self, model: Speech2Text, samples: np.ndarray) -> Timed:
        """Transcribe as ``espnet-medusa-transcribe`` without options."""
        options = default_options(long_form=True)
        started = time.perf_counter()
        run = model.long_form(LongFormOptions(**options))
        *_, step = run([LongRecording(None, samples)])
        if step.recording.error is not None:
            raise step.recording.error
        seconds = time.perf_counter() - started
        counts = vars(step.recording.statistics)
        return self._timed(Result(" ".join(step.recording.text.split()), counts=counts), seconds)

    def _timed(self, result: Result, seconds: float) -> Timed:
        decoder = result.counts["decoder_seconds"]
        return Timed([result], seconds - decoder, decoder)
