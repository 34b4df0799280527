"""ESPnet's speech-to-text inference (OWSM) with beam search that decodes several tokens per call.

OWSM: Peng et al., arXiv 2309.13876.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from espnet2.bin.s2t_inference import ScoreFilter
from espnet2.bin.s2t_inference import Speech2Text as ESPnetSpeech2Text
from espnet2.tasks.s2t import S2TTask

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.checkpoint import load_weights
from espnet_medusa.data.threads import PerThread, lock_of
from espnet_medusa.decoding.draft.model import DraftModelProposer
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.search.state import SearchState
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.decoding.tree.proposer import DraftInput
from espnet_medusa.inference.audio_batch import (
    AudioBatch,
    SpeechEncoder,
    audio_limits,
    model_encoder,
)
from espnet_medusa.inference.batches import Utterance
from espnet_medusa.inference.choose_search import full_scorers
from espnet_medusa.inference.convert.experiment import CONFIG
from espnet_medusa.inference.decode_options import (
    DraftModelOptions,
    check_espnet_decodes,
    split_options,
    with_model_defaults,
)
from espnet_medusa.inference.decoding import Decoding, Speech, count_words, open_tokenizer
from espnet_medusa.inference.decoding_model import check_draft_texts
from espnet_medusa.inference.espnet_search import SearchInESPnet, search_like
from espnet_medusa.inference.experiment import (
    check_language_model,
    find_experiment,
    language_model_errors,
)
from espnet_medusa.inference.job import PREVIOUS
from espnet_medusa.inference.longform.draft_text import DraftText, plain_text
from espnet_medusa.inference.packed_model import fetch_packed_model, open_packed_model
from espnet_medusa.inference.reader import Preprocess
from espnet_medusa.inference.smaller_batches import run_list
from espnet_medusa.inference.trace_text import SYMBOL, TraceText
from espnet_medusa.inference.utterance_decoder import UtteranceDecoder
from espnet_medusa.networks.espnet_compat import BatchScorerInterface, Hypothesis
from espnet_medusa.networks.espnet_transformer import searchable, unknown_part

ESPNET_OPTIONS = inspect.signature(ESPnetSpeech2Text.__init__).parameters

Encoded = tuple[torch.Tensor, list[int]]  # (S, D) encoder output and the prompt of an utterance


class TimestampFilter(BatchScorerInterface):
    """ESPnet's ``ScoreFilter`` of timestamps, for all prefixes and tokens at once.

    Scores are 0 for allowed tokens, else -inf. ``rules`` has the token ids.
    """

    def __init__(self, rules: ScoreFilter):
        self.rules = rules

    def batch_score(
        self, ys: torch.Tensor, states: list[Any], xs: torch.Tensor
    ) -> tuple[torch.Tensor, list[Any]]:
        """Score the tokens (R, V) after prefixes (R, T) of a prompt and a hypothesis."""
        rules, tokens = self.rules, torch.arange(self.rules.vocab_size, device=ys.device)
        first, last = rules.first_time, rules.last_time
        timed = (ys >= first) & (ys <= last)
        places = torch.arange(1, ys.size(1) + 1, device=ys.device)
        latest = ys.gather(1, (timed * places).argmax(dim=1, keepdim=True))  # (R, 1)
        is_time = (tokens >= first) & (tokens <= last)
        after_end = (tokens >= latest) & (tokens <= last) | (tokens == rules.eos)
        after_start = ~((tokens >= first) & (tokens <= latest) | (tokens == rules.eos))
        # Allowed tokens (R, V); each condition on the prefix (R, 1) overrides those before it.
        allowed = timed[:, -1:] & after_end
        allowed = torch.where(timed.sum(dim=1, keepdim=True) % 2 == 1, after_start, allowed)
        allowed = torch.where(ys[:, -3, None] == rules.sos, is_time, allowed)
        untimed = (ys == rules.notimestamps).any(dim=1, keepdim=True)
        allowed = torch.where(untimed, ~is_time, allowed)
        scores = torch.zeros(allowed.shape, dtype=rules.param.dtype, device=ys.device)
        return scores.masked_fill(~allowed, -torch.inf), states


class S2TDraftModelOnDemand:
    """Opens a smaller model with the same token list, and prepares its inputs."""

    def __init__(self, main: S2TSpeech2Text, draft_model: str, draft_model_file: str | None):
        self.main, self.name, self.weights = main, draft_model, draft_model_file
        self.encoder: SpeechEncoder | None = None  # None: not opened

    def __call__(self) -> DraftModelProposer:
        """Open the model and return its proposer; raise InputError if it is missing or unfit."""
        main, options, name = self.main.s2t_model, self.main.options, self.name
        files = find_experiment(name, self.weights, "draft_model")
        if files is None:
            raise InputError(f"draft_model: {name}: has no {CONFIG}; allowed: an s2t experiment")
        load_weights(files[1], mapped=True)  # refuses files that could run code
        network, _ = S2TTask.build_model_from_file(*files, self.main.device)
        decoder = searchable(network.decoder)
        if decoder is None:
            reason = unknown_part(network.decoder)
            raise InputError(f"draft_model: {name}: {reason}; allowed: transformer(_medusa)")
        if [*network.token_list] != [*main.token_list]:
            raise InputError(f"draft_model: {name}: allowed: a model with the same token list")
        self.encoder = model_encoder(network.to(dtype=getattr(torch, self.main.dtype)).eval())
        precision = options.draft_precision or options.decoder_precision
        return DraftModelProposer(build_runtime(decoder, precision), main.eos)

    def draft_inputs(
        self, speeches: Sequence[torch.Tensor], encoded: Sequence[Encoded]
    ) -> list[DraftInput]:
        """Encode U utterances (samples,); ``encoded`` is ``BatchInESPnet.inputs``."""
        samples = self.main.window_samples
        # As ESPnet's call: audio is padded or cut to the model's window.
        rows = [torch.as_tensor(row)[:samples] for row in speeches]
        rows = [torch.nn.functional.pad(row, (0, samples - len(row))) for row in rows]
        audio = AudioBatch(rows, torch.device(self.main.device), getattr(torch, self.main.dtype))
        encoder_out, _ = audio.encode(self.encoder)
        rows = zip(encoder_out, encoded, strict=True)
        return [DraftInput(row, prompt, main_encoder_out=main) for row, (main, prompt) in rows]


class BatchInESPnet(SearchInESPnet):
    """Lets ESPnet encode several utterances before one search decodes them.

    ``S2TSpeech2Text.decode`` lets ESPnet call it twice per utterance. The first call stores encoder
    output and prompt, the second one returns the hypotheses that the search found in between. Each
    thread has its own.
    """

    inputs = PerThread(lambda search: [])  # ``Encoded`` of each utterance
    found = PerThread(lambda search: [])  # n-best lists of hypotheses

    def clear(self) -> None:
        self.inputs, self.found = [], []

    def __call__(self, x: torch.Tensor, **limits: float) -> list[Hypothesis]:
        """Store ``x`` (S, D), or return its n-best list."""
        if self.found:
            return self.found.pop(0)
        self.inputs.append((x, self.prompt))
        return []

    def search_all(
        self,
        limits: LengthLimits,
        draft_inputs: Sequence[DraftInput] | None,
        draft_texts: Sequence[list[int] | None] | None = None,
    ) -> list[SearchState]:
        """Decode the stored utterances together, and store their n-best lists."""
        encoder_outs, prompts = zip(*self.inputs, strict=True)
        states = self.decode(encoder_outs, prompts, limits, draft_inputs, draft_texts)
        self.found = [*map(self.hypotheses, states, prompts)]
        return states


class S2TSpeech2Text(ESPnetSpeech2Text):
    """Audio in, n-best list out; same call, ``decode_long`` and return values as ESPnet's.

    ``options`` are ESPnet's other arguments and the fields of ``DraftModelOptions``. A
    ``batch_size`` above 1 requires that ``decode`` can decode utterances together. Raise InputError
    if an option, the model or their combination is not usable.
    """

    def __init__(
        self,
        s2t_train_config: Path | str | None = None,
        s2t_model_file: Path | str | None = None,
        **options: Any,
    ):
        self.options, batch_size = split_options(options, ESPNET_OPTIONS, DraftModelOptions, "s2t")
        with language_model_errors(options, s2t_model_file):
            super().__init__(s2t_train_config, s2t_model_file, **options)
        check_language_model(options, self.s2t_model.token_list)
        open_tokenizer(self.tokenizer)
        espnet, network = self.beam_search, self.s2t_model
        scorers = full_scorers(espnet)
        rules = [part for part in scorers.values() if isinstance(part, ScoreFilter)]
        full = {
            name: TimestampFilter(part) if part in rules else part for name, part in scorers.items()
        }
        decoder = getattr(network, "decoder", None)  # OWSM-CTC has none
        of_model = decoder, self.s2t_train_args, options["beam_size"]
        given, self.options = self.options, with_model_defaults(self.options, *of_model)
        files = self.options.draft_model, self.options.draft_model_file
        self.draft = None if files[0] is None else S2TDraftModelOnDemand(self, *files)
        times = range(rules[0].first_time, rules[0].last_time + 1) if rules else range(0)
        parts = espnet, decoder, network.ctc, self.options, self.nbest, full
        self.search = search_like(*parts, self.draft, times)  # None: ESPnet's own search decodes
        if self.search is None:
            check_espnet_decodes(given, batch_size, decoder)
        else:
            self.beam_search = BatchInESPnet(espnet, self.search)
        self.audio = audio_limits(network.encoder, self.s2t_train_args)

    statistics = PerThread(lambda speech2text: DecodingStatistics())  # of the thread's last call

    @property
    def window_samples(self) -> int:
        """Samples to which ESPnet pads or cuts audio."""
        return int(self.preprocessor_conf["fs"] * self.preprocessor_conf["speech_length"])

    @staticmethod
    def from_pretrained(model_tag: str | None = None, **options) -> S2TSpeech2Text:
        """Open a packed model: an archive, or a tag of ESPnet's zoo; None: ``options`` name files.

        Raise InputError if there is no such model, or an option is not usable.
        """
        if model_tag is not None:
            options |= open_packed_model(fetch_packed_model(model_tag))
        return S2TSpeech2Text(**options)

    def __call__(
        self,
        speech: Speech | Sequence[Speech],
        text_prev: np.ndarray | torch.Tensor | str | list | None = None,
        lang_sym: str | None = None,
        task_sym: str | None = None,
        predict_time: bool | None = None,
    ) -> list | tuple[list, dict[int, list[str]]]:
        """Decode (samples,) in [-1, 1] at the model's sample rate; other arguments as in ESPnet.

        Return an n-best list of text, tokens, token ids, text without symbols, and hypothesis. With
        intermediate CTC, return a tuple of it and the tokens by layer. For a list of utterances,
        return the n-best list of each; ``text_prev`` is then a list, too, or None.
        """
        symbols = {"lang_sym": lang_sym, "task_sym": task_sym, "predict_time": predict_time}
        if isinstance(speech, list | tuple):
            return self.batch_decode(speech, text_prev=text_prev, **symbols)
        decoding = self.decode([speech], [symbols | {"text_prev": text_prev}])[0]
        self.statistics = decoding.statistics
        if decoding.intermediate is None:
            return decoding.results
        return decoding.results, decoding.intermediate

    def batch_decode(
        self, speech, speech_lengths=None, text_prev=None, text_prev_lengths=None, **symbols
    ) -> list[list]:
        """Decode several utterances; arguments and return value as in ESPnet 202611."""
        if self.search is None and hasattr(ESPnetSpeech2Text, "batch_decode"):
            inputs = speech, speech_lengths, text_prev, text_prev_lengths
            return super().batch_decode(*inputs, **symbols)
        texts = [None] * len(speech) if text_prev is None else [*text_prev]
        if text_prev_lengths is not None:
            texts = [text[: int(size)] for text, size in zip(texts, text_prev_lengths, strict=True)]
        conditions = ({"text_prev": text, **symbols} for text in texts)
        inputs = [*zip(speech, conditions, strict=True)]
        decodings = run_list(lambda batch: self.decode(*zip(*batch, strict=True)), inputs)
        self.statistics = sum((one.statistics for one in decodings), DecodingStatistics())
        return [decoding.results for decoding in decodings]

    @torch.no_grad()
    def decode(
        self,
        speeches: Sequence[Speech],
        conditions: Sequence[Mapping[str, Any]] | None = None,
        draft_texts: Sequence[DraftText | None] | None = None,
    ) -> list[Decoding]:
        """Decode several utterances together; each has an equal share of the seconds.

        Args:
            speeches: U times (samples,) in [-1, 1], at the model's sample rate.
            conditions: U mappings with other arguments of ``__call__``; None: its defaults.
            draft_texts: U texts that may be right, such as earlier results; None: no text. They do
                not change the results.
        """
        if not len(speeches):
            return []
        started, texts = time.perf_counter(), self._encode_draft_texts(draft_texts or [])
        speeches = [*map(self.audio.read, speeches)]
        results = self.encode(speeches, conditions or [{}] * len(speeches))
        statistics, traces = [DecodingStatistics() for _ in results], [None] * len(results)
        if self.search is not None:
            draft_inputs, traced = None, self.options.trace
            limits = LengthLimits(self.maxlenratio, self.minlenratio, traced=traced)
            if self.draft is not None and self.draft.encoder is not None:
                draft_inputs = self.draft.draft_inputs(speeches, self.beam_search.inputs)
            states = self.beam_search.search_all(limits, draft_inputs, texts)
            statistics = [state.statistics for state in states]
            traces = [*map(TraceText(self.converter, self.tokenizer).passages, states)]
            nbest = [
                self._decode_single_sample(encoder_out)
                for encoder_out, _ in self.beam_search.inputs
            ]
            results = [(one, layers) for one, (_, layers) in zip(nbest, results, strict=True)]
        seconds = (time.perf_counter() - started) / len(speeches)
        for speech, (nbest, _), counted in zip(speeches, results, statistics, strict=True):
            counted.audio_seconds = len(speech) / self.preprocessor_conf["fs"]
            counted.total_seconds = seconds
            counted.words = count_words(nbest[0][3] if nbest else None)
        return [
            Decoding(nbest, counted, _language(nbest), intermediate=layers, trace=trace)
            for (nbest, layers), counted, trace in zip(results, statistics, traces, strict=True)
        ]

    def check_draft_texts(self) -> bool:
        """Return whether draft texts are used; raise InputError if they cannot be used."""
        return check_draft_texts(self.search, self.options, self.tokenizer)

    def _encode_draft_texts(
        self, texts: Sequence[DraftText | None]
    ) -> list[list[int] | None] | None:
        """Return the tokens of draft texts, without symbols such as languages; None: no texts."""
        if all(text is None for text in texts) or not self.check_draft_texts():
            return None
        spoken = [None if text is None else SYMBOL.sub(" ", plain_text(text)) for text in texts]
        tokenize, ids = self.tokenizer.text2tokens, self.converter.tokens2ids
        return [None if text is None else ids(tokenize(text.strip())) for text in spoken]

    def encode(
        self, speeches: Sequence[Speech], conditions: Sequence[Mapping[str, Any]]
    ) -> list[tuple[list, dict[int, list[str]] | None]]:
        """Let ESPnet encode utterances, for ``BatchInESPnet.inputs``; arguments as ``decode``.

        Return n-best lists, empty with our search, and results of intermediate CTC or None.
        """
        if self.search is not None:
            self.beam_search.clear()
        results = []
        for speech, condition in zip(speeches, conditions, strict=True):
            for name in ("lang_sym", "task_sym"):
                symbol = condition.get(name) or getattr(self, name)
                if symbol not in self.converter.token2id:
                    raise InputError(f"{name}: {symbol}; allowed: tokens of this model")
            with lock_of(self.s2t_model):
                result = super().__call__(speech, **condition)
            results.append(result if isinstance(result, tuple) else (result, None))
        return results


@dataclass(frozen=True)
class S2TUtteranceDecoder(UtteranceDecoder):
    """Decodes in batches; ``speech2text`` is an ``S2TSpeech2Text``."""

    # ESPnet's preprocessing function, which tokenizes previous texts.
    preprocess: Preprocess | None = None

    def _decode_batch(self, utterances: Sequence[Utterance]) -> list[Decoding]:
        conditions = [self._condition(utterance) for utterance in utterances]
        texts = [utterance.draft_text for utterance in utterances]
        speeches = [utterance.speech for utterance in utterances]
        return self.speech2text.decode(speeches, conditions, texts)

    def _condition(self, utterance: Utterance) -> dict[str, Any]:
        condition, text = {}, utterance.previous_text
        if utterance.language is not None:
            condition["lang_sym"] = f"<{utterance.language}>"
        if text is not None:
            condition[PREVIOUS] = text
            if self.preprocess is not None:
                condition[PREVIOUS] = self.preprocess(utterance.key, {PREVIOUS: text})[PREVIOUS]
        return condition


def _language(nbest: list) -> str | None:
    """Return the best result's first token, a symbol, without its angle brackets."""
    tokens = nbest[0][1] if nbest else []
    return tokens[0].strip("<>") if tokens else None
