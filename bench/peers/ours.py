"""Ours: all that the comparison knows of espnet_medusa's searches and runtime."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from decoder_calls import TreeCalls, call_seconds
from espnet2.asr.ctc import CTC as CTCBranch

from espnet_medusa.draft.model import DraftModelProposer
from espnet_medusa.files.checkpoint import load_weights
from espnet_medusa.model.multi_token_decoder import TOKEN_COUNTS
from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.runtime.process import keep_freed_memory
from espnet_medusa.search.beam import BeamState
from espnet_medusa.search.build import SearchModel, build_beam, build_greedy
from espnet_medusa.search.drafters import DraftSources
from espnet_medusa.search.greedy import GreedyState
from espnet_medusa.search.options import LengthLimits, SearchOptions
from espnet_medusa.search.search import Search
from espnet_medusa.search.statistics import DecodingStatistics
from peers.contestant import Contestant, Decoded, Setup
from peers.memories import pad_memories, until_end
from peers.replay import Recorder, Replayer, measured_steps, stated_steps
from peers.subject import OURS, OURS_CTC, OURS_DRAFT, Subject
from peers.way import CTC, CTC_HEADS, HEADS, MODEL, PLAIN, REPLAYED, Way

DRAFT_VOCAB_SIZE = 4096  # of random weights; the trained model's whole vocabulary is smaller


def load_decoder(subject: Subject, with_heads: bool = True) -> WhisperMedusaDecoder:
    """The module that ESPnet trains, with the subject's weights."""
    conf, weights = subject.decoder_conf, load_weights(subject.folder / OURS)
    if not with_heads:
        conf = conf | {"heads": "none", "heads_conf": {}}
        weights = {
            name: one
            for name, one in weights.items()
            if not name.startswith(("heads.", TOKEN_COUNTS))
        }
    return _build_decoder(subject, conf, weights)


def load_draft_decoder(subject: Subject) -> WhisperMedusaDecoder:
    """The draft model's; it reads the same memory."""
    return _build_decoder(subject, subject.draft_conf, load_weights(subject.folder / OURS_DRAFT))


def _build_decoder(
    subject: Subject, conf: dict, weights: dict[str, torch.Tensor]
) -> WhisperMedusaDecoder:
    decoder = WhisperMedusaDecoder(subject.sizes.vocab_size, subject.sizes.hidden_size, **conf)
    decoder.load_state_dict(weights)
    return decoder.eval()


def load_ctc(subject: Subject) -> CTCBranch:
    """The CTC branch."""
    ctc = CTCBranch(subject.sizes.vocab_size, subject.sizes.hidden_size)
    ctc.ctc_lo.load_state_dict(load_weights(subject.folder / OURS_CTC))
    return ctc.eval()


def max_length_ratio(subject: Subject) -> float:
    """ESPnet's maxlenratio: as many tokens as are fixed, or its default with end detection."""
    return -float(subject.fixed_tokens or 0)


class Ours(Contestant):
    """Greedy and beam search, with and without drafts."""

    def __init__(self, subject: Subject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        torch.set_num_threads(setup.threads)
        self.decoder = load_decoder(subject).to(setup.device)
        keep_freed_memory()  # as asr_inference does
        self.searches: dict[tuple[str, str], Search] = {}
        self.replayers: dict[tuple[str, float], Replayer] = {}
        self.recorders: dict[str, Recorder] = {}

    def search(self, way: Way) -> Search:
        """The search of a way, built when it is first asked for."""
        key = way.search, way.drafts
        if key not in self.searches:
            self.searches[key] = self._build(way)
        return self.searches[key]

    def _build(self, way: Way) -> Search:
        greedy = way.beam_size == 1
        drafter = HEADS if way.drafts == REPLAYED else way.drafts or None
        options = SearchOptions(
            search="greedy" if greedy else "beam",
            drafter=drafter,
            draft_depth=0 if way.drafts == PLAIN else None,
            draft_vocab_size=DRAFT_VOCAB_SIZE if self.subject.fixed_tokens else None,
        )
        sizes, device = (self.subject.sizes.vocab_size, self.subject.eos), self.setup.device
        runtime, sources = build_runtime(self.decoder, self.weights), self._sources(drafter)
        model = SearchModel(runtime, *sizes, torch.device(device), sources=sources)
        if greedy:
            return build_greedy(options, model)
        return build_beam(options, model, way.beam_size, nbest=1)

    def _sources(self, drafter: str | None) -> DraftSources:
        """What a drafter needs beside heads; a way holds no memory for the drafters of others."""
        counted = self.decoder.draft_vocabulary
        if drafter == MODEL:
            return DraftSources(model=self._draft_model)
        if drafter in (CTC, CTC_HEADS):
            ctc = self.ctc.log_softmax
            return DraftSources(ctc, self.subject.ctc_blank, frequent_tokens=counted)
        return DraftSources(frequent_tokens=counted)

    @cached_property
    def ctc(self) -> CTCBranch:
        """The CTC branch, float32: it reads the memory once an input."""
        return load_ctc(self.subject).to(self.setup.device)

    def _draft_model(self) -> DraftModelProposer:
        """The draft model with the decoder's type of weights."""
        decoder = load_draft_decoder(self.subject).to(self.setup.device)
        return DraftModelProposer(build_runtime(decoder, self.weights), self.subject.eos)

    def decode(self, way: Way, names: Sequence[str], memories: Sequence[np.ndarray]) -> Decoded:
        if way.drafts == REPLAYED:
            return self._replay(way, names, memories)
        return self._decoded(self._run(self.search(way), memories))

    @torch.no_grad()
    def _run(
        self, search: Search, memories: Sequence[np.ndarray]
    ) -> list[GreedyState] | list[BeamState]:
        device = self.setup.device
        memory = torch.from_numpy(pad_memories(memories)).to(device)
        frames = torch.tensor([len(one) for one in memories], device=device)
        prompt = torch.full((len(memories), 1), self.subject.eos, device=device)
        limits = LengthLimits(max_length_ratio(self.subject))
        return search(memory, frames, prompt, limits)

    def _decoded(self, states: Sequence[GreedyState | BeamState]) -> Decoded:
        statistics = sum((state.statistics for state in states), DecodingStatistics())
        return Decoded(
            [until_end(_tokens(state), self.subject.eos) for state in states],
            statistics.decoder_calls,
            statistics.nodes,
            calls_by_tokens(statistics),
        )

    def _replay(self, way: Way, names: Sequence[str], memories: Sequence[np.ndarray]) -> Decoded:
        """With drafts of a stated acceptance; inputs that are new are recorded first."""
        started = time.perf_counter()
        recorder = self.recorders.get(way.search)
        if recorder is None:
            plain = self._build(replace(way, drafts=PLAIN))
            recorder = self.recorders[way.search] = Recorder(plain, {})
        for name, memory in zip(names, memories, strict=True):
            if name not in recorder.records:
                recorder.expect([name])
                self._run(recorder.search, [memory])
        replayer = self._replayer(way, recorder)
        replayer.expect(names)
        recorded = time.perf_counter() - started
        decoded = self._decoded(self._run(replayer.search, memories))
        return replace(decoded, excluded_seconds=recorded + replayer.seconds)

    def _replayer(self, way: Way, recorder: Recorder) -> Replayer:
        key = way.search, way.tokens_per_call
        if key not in self.replayers:
            if way.tokens_per_call:
                steps = stated_steps(way.tokens_per_call)
            else:
                steps = measured_steps(self.setup.acceptance[way.search])
            self.replayers[key] = Replayer(
                self._build(way), recorder.records, steps, self.subject.sizes.vocab_size
            )
        return self.replayers[key]

    @torch.no_grad()
    def time_calls(self, memory: np.ndarray, nodes: int, repeats: int) -> list[float]:
        """Seconds of decoder calls with a chain of new nodes and their vocabulary projections."""
        decoder = self.search(Way("ours", self.weights, "greedy")).decoder
        calls = TreeCalls(decoder, torch.from_numpy(memory)[None].to(self.setup.device))
        return call_seconds(calls, nodes, repeats, self.setup.device)


def calls_by_tokens(statistics: DecodingStatistics) -> dict[int, int]:
    """How many calls that verified drafts took so many steps, the base head's own one included."""
    taken = [*statistics.drafted[:1], *statistics.accepted, 0]
    calls = {
        step + 1: more - fewer
        for step, (more, fewer) in enumerate(zip(taken, taken[1:], strict=False))
    }
    return dict(+Counter(calls))


def _tokens(state: GreedyState | BeamState) -> list[int]:
    if isinstance(state, GreedyState):
        return state.tokens
    return state.ended[0].tokens if state.ended else []


build = Ours
