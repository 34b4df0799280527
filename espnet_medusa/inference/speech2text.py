"""ESPnet's Speech2Text with searches that take several tokens per decoder call."""

import dataclasses
import inspect
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from espnet2.bin.asr_inference import Speech2Text as ESPnetSpeech2Text

from espnet_medusa.checkpoint import check_shapes, load_weights
from espnet_medusa.compat import Hypothesis
from espnet_medusa.errors import InputError
from espnet_medusa.inference.audio_batch import (
    AudioBatch,
    audio_limits,
    encode_alike,
    model_encoder,
)
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.inference.draft_model import DraftModel, open_draft_model
from espnet_medusa.inference.obstacles import (
    beam_obstacle,
    check_batch,
    check_espnets_own,
    check_greedy,
)
from espnet_medusa.inference.timing_log import log_decoded
from espnet_medusa.model.espnet_transformer import tree_scorer_of, unknown_part
from espnet_medusa.model.multi_token_decoder import TOKEN_COUNTS
from espnet_medusa.options import build_options
from espnet_medusa.plugin import WHISPER, register
from espnet_medusa.search.beam import BeamSearch, BeamWalk, LengthLimits
from espnet_medusa.search.build import (
    GREEDY,
    build_beam,
    build_greedy,
    check_options,
    search_within,
)
from espnet_medusa.search.drafters import DraftSources, hide_tokens
from espnet_medusa.search.greedy import GreedySearch, GreedyWalk
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.tree.surrogate import DraftInput, Surrogate
from espnet_medusa.vocabulary.vocabulary import token_list_vocabulary
from espnet_medusa.whisper.prompts import WhisperPrompts
from espnet_medusa.whisper.tokens import TRANSCRIBE, read_whisper_tokens

logger = logging.getLogger(__name__)

Result = tuple[str | None, list[str], list[int], Hypothesis]


@dataclass(frozen=True)
class Decoding:
    """What one utterance gave.

    Attributes:
        results: N-best list of text, tokens, token ids and hypothesis; empty when none ended.
        statistics: What it cost.
    """

    results: list[Result]
    statistics: DecodingStatistics


class Speech2Text(ESPnetSpeech2Text):
    """Audio in, n-best list out; same call and same return value as ESPnet's.

    Args:
        asr_train_config: The experiment's ``config.yaml``.
        asr_model_file: Its weights.
        options: ESPnet's other arguments and the fields of ``DecodeOptions``. ``batch_size`` is
            how many utterances ``decode`` will be given; the search itself takes any number.

    Raises:
        InputError: An option, the checkpoint or their combination is not usable.

    After each call ``statistics`` holds what the utterance cost.
    """

    def __init__(
        self,
        asr_train_config: Path | str | None = None,
        asr_model_file: Path | str | None = None,
        **options,
    ):
        register()
        options |= {"asr_train_config": asr_train_config, "asr_model_file": asr_model_file}
        espnet_keys = inspect.signature(ESPnetSpeech2Text.__init__).parameters
        own = {name: options.pop(name) for name in [*options] if name not in espnet_keys}
        self.search_options = build_options(DecodeOptions, own, "decode config")
        batch_size = options.pop("batch_size", 1)
        check_batch(batch_size, options)
        check_options(self.search_options, options.get("beam_size", 20))
        self._build(options)
        self.whisper = self._whisper_prompts()
        self.tree_scorer = tree_scorer_of(self.asr_model.decoder)
        self.encoder = model_encoder(self.asr_model)
        self.sample_rate_hz, self.window_s = audio_limits(
            self.asr_model.encoder, self.asr_train_args
        )
        self.draft_model: DraftModel | None = None
        self.search = self._build_search(options)
        if self.search is not None:
            logger.info(f"{type(self.search).__name__}, drafts: {self.search.drafter.shape}")
        if self.search is None:
            check_espnets_own(self.search_options, batch_size, self.asr_model.decoder)
        self.statistics = DecodingStatistics()
        blank = self.asr_model.blank_id
        # Whisper's vocabulary has no blank: there id 0 is a token like any other.
        self.hidden_ids = {blank} if self.asr_model.token_list[blank] == "<blank>" else set()

    def _build(self, options: dict[str, Any]) -> None:
        """ESPnet's own construction, between checks that it lacks."""
        model_file = options.get("asr_model_file")
        if model_file is None:
            raise InputError("asr_model_file: missing; give the trained model, such as valid.pth")
        # Read safely first: ESPnet reads the same file in a way that may run code.
        # Only its sizes are kept: ESPnet holds the weights twice, which is enough.
        weights = load_weights(Path(model_file))
        weights = {name: weight.to("meta") for name, weight in weights.items()}
        if options.get("lm_file") is not None:
            load_weights(Path(options["lm_file"]))
        try:
            super().__init__(**options)
        except TypeError as error:
            raise InputError(f"{options.get('asr_train_config')}: {error}") from error
        except RuntimeError as error:
            if "size mismatch" not in str(error):
                raise
            reason = str(error).splitlines()[1].strip()
            raise InputError(
                f"{model_file}: does not fit {options.get('asr_train_config')}: {reason}; use the "
                "config and token list that it was trained with"
            ) from error
        if not options.get("quantize_asr_model", False):
            expected = {
                name: value
                for name, value in self.asr_model.state_dict().items()
                if name in weights or not name.endswith(TOKEN_COUNTS)
            }
            check_shapes(weights, expected, model_file, complete=True)

    def _whisper_prompts(self) -> WhisperPrompts | None:
        """Prompts of a model that was trained on Whisper's labels; sets what it suppresses."""
        if getattr(self.asr_train_args, "preprocessor", None) != WHISPER:
            return None
        options, conf = self.search_options, self.asr_train_args.preprocessor_conf
        tokens = read_whisper_tokens(self.converter.tokenizer)
        own = {
            name: ids
            for name, ids in (
                ("suppress_tokens", tokens.suppressed),
                ("begin_suppress_tokens", tokens.begin_suppressed),
            )
            if getattr(options, name) is None
        }
        self.search_options = dataclasses.replace(options, **own)
        return WhisperPrompts(
            tokens,
            options.language or conf.get("language", "en"),
            options.task or conf.get("task", TRANSCRIBE),
        )

    def _build_search(self, options: dict[str, Any]) -> GreedySearch | BeamSearch | None:
        """Our search; None where the decoder or the options are for ESPnet's own."""
        model, espnet = self.asr_model, self.beam_search
        sizes = len(model.token_list), model.eos
        device, sources = torch.device(self.device), self.draft_sources()
        obstacle = self._obstacle()
        if self.search_options.search == GREEDY:
            check_greedy(obstacle, options)
            return build_greedy(self.search_options, self.tree_scorer, *sizes, device, sources)
        obstacle = obstacle or beam_obstacle(espnet)
        if obstacle is not None:
            logger.warning(
                "ESPnet's own search decodes, one utterance at a time and without drafts; the "
                f"reason: {obstacle}"
            )
            return None
        scorers = dict(espnet.full_scorers)
        del scorers["decoder"]
        return build_beam(
            self.search_options,
            self.tree_scorer,
            scorers,
            model.ctc if "ctc" in espnet.part_scorers else None,
            espnet.weights,
            espnet.beam_size,
            *sizes,
            espnet.normalize_length,
            device,
            sources,
        )

    def draft_sources(self) -> DraftSources:
        """What could draft beside heads; a draft model is opened when it is asked for."""
        model, ctc = self.asr_model, None
        if getattr(model, "ctc", None) is not None:
            ctc = model.ctc.log_softmax
            if self.whisper is not None:  # labels of CTC hold the prompt
                ctc = hide_tokens(ctc, self.whisper.tokens.prompts, model.blank_id)
        given = self.search_options.draft_model is not None
        return DraftSources(ctc, model.blank_id, self._open_draft_model if given else None)

    def _open_draft_model(self) -> Surrogate:
        """Read it, and refuse one that cannot draft for this model."""
        options = self.search_options
        draft = open_draft_model(
            options.draft_model,
            options.draft_model_file,
            self.device,
            getattr(torch, self.dtype),
        )
        if draft.sample_rate_hz != self.sample_rate_hz:
            raise InputError(
                f"draft_model: {draft.name} expects {draft.sample_rate_hz} Hz; allowed: the main "
                f"model's {self.sample_rate_hz} Hz"
            )
        precision = options.draft_precision or options.decoder_precision
        model, args = self.asr_model, self.asr_train_args
        vocabulary = partial(
            token_list_vocabulary, model.token_list, args.token_type, args.bpemodel
        )
        surrogate = draft.surrogate(model.token_list, model.eos, vocabulary, precision)
        if encode_alike(self.encoder, draft.encoder):
            draft = dataclasses.replace(draft, encoder=self.encoder)
        windows = [window for window in (self.window_s, draft.window_s) if window is not None]
        self.draft_model, self.window_s = draft, min(windows, default=None)
        return surrogate

    def _obstacle(self) -> str | None:
        """What of this model our searches cannot do."""
        for name in ("multi_asr", "enh_s2t_task"):
            if getattr(self, name):
                return f"{name}: true"
        return unknown_part(self.asr_model.decoder)

    def release_weights(self) -> None:
        """Give back the memory of decoder weights that the search has laid out anew.

        For processes that decode and do nothing else: the module itself is of no use then.
        """
        if self.search is not None:
            self.tree_scorer.release()
        if self.draft_model is not None:
            self.draft_model.release()

    @staticmethod
    def from_pretrained(model_tag: str | None = None, **options) -> "Speech2Text":
        """Build from a tag of ESPnet's model zoo, which downloads and unpacks it."""
        if model_tag is not None:
            from espnet_model_zoo.downloader import ModelDownloader

            options |= ModelDownloader().download_and_unpack(model_tag)
        return Speech2Text(**options)

    @torch.no_grad()
    def __call__(self, speech) -> list[Result]:
        """Decode one utterance.

        Args:
            speech: (samples,) in [-1, 1], at the model's sample rate.

        Returns:
            N-best list of text, tokens, token ids and hypothesis.
        """
        if self.search is not None:
            decoding = self.decode([speech])[0]
            self.statistics = decoding.statistics
            return decoding.results
        started = time.perf_counter()
        results = super().__call__(speech)
        self.statistics = DecodingStatistics(
            audio_seconds=len(speech) / self.sample_rate_hz,
            total_seconds=time.perf_counter() - started,
        )
        if results and isinstance(results, list) and results[0][0] is not None:
            self.statistics.words = len(results[0][0].split())
        return results

    @torch.no_grad()
    def decode(
        self,
        speeches: Sequence[np.ndarray | torch.Tensor],
        languages: Sequence[str | None] | None = None,
    ) -> list[Decoding]:
        """Decode several utterances together; each takes its own number of tokens per call.

        Args:
            speeches: U times (samples,) in [-1, 1], at the model's sample rate.
            languages: U codes for Whisper's prompts, None where it is the search's own.

        Returns:
            U results, in order. Seconds of what was done together are shared out evenly.
        """
        if self.search is None:
            # In a tuple ESPnet adds what intermediate CTC wrote.
            found = ((self(speech), self.statistics) for speech in speeches)
            return [
                Decoding(results[0] if isinstance(results, tuple) else results, statistics)
                for results, statistics in found
            ]
        began, started = time.time(), time.perf_counter()
        audio = self.batch(speeches)
        memory, frames = self.encode(audio)
        prompt = self.prompts(memory, frames, languages or [None] * len(speeches))
        draft_inputs = self.draft_inputs(audio, prompt)
        limits = LengthLimits(self.maxlenratio, self.minlenratio)
        walks = search_within(self.search, memory, frames, prompt, limits, draft_inputs)
        decodings = [
            self._decoding(walk, tokens)
            for walk, tokens in zip(walks, prompt.tolist(), strict=True)
        ]
        seconds = (time.perf_counter() - started) / len(speeches)
        for row, (speech, decoding) in enumerate(zip(speeches, decodings, strict=True)):
            decoding.statistics.audio_seconds = len(speech) / self.sample_rate_hz
            decoding.statistics.total_seconds = seconds
            if decoding.results:
                best = "".join(decoding.results[0][1])
                log_decoded(logger, len(speech), best, began + row * seconds, seconds)
        return decodings

    def batch(self, speeches: Sequence[np.ndarray | torch.Tensor]) -> AudioBatch:
        """U times (samples,), for ``encode`` and ``draft_inputs``."""
        speeches = [torch.as_tensor(speech) for speech in speeches]
        return AudioBatch(speeches, self.device, getattr(torch, self.dtype))

    def encode(self, audio: AudioBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Encoder output (U, S, D) of U utterances, and its lengths (U,)."""
        return audio.encode(self.encoder)

    def draft_inputs(self, audio: AudioBatch, prompt: torch.Tensor) -> list[DraftInput] | None:
        """What a draft model reads of U utterances; None where none drafts.

        Args:
            audio: As ``encode`` took it: features of the same kind are not computed again.
            prompt: (U, P) of ``prompts``.
        """
        if self.draft_model is None:
            return None
        tokens = None if self.whisper is None else self.whisper.tokens
        return self.draft_model.read(audio, prompt.tolist(), tokens)

    def prompts(
        self,
        memory: torch.Tensor,
        frames: torch.Tensor,
        languages: Sequence[str | None],
    ) -> torch.Tensor:
        """Tokens (U, P) that the hypotheses of each utterance start from.

        Args:
            memory: (U, S, D) encoder output.
            frames: (U,) lengths of it.
            languages: U codes; None: the search's own.

        Raises:
            InputError: A language that the model does not have.
        """
        if self.whisper is not None:
            rows = self.whisper.make(self.search.decoder, memory, frames, languages)
        else:
            rows = [self.beam_search.hyp_primer or [self.asr_model.sos]] * len(languages)
        return torch.tensor(rows, device=memory.device)

    def _decoding(self, walk: GreedyWalk | BeamWalk, prompt: list[int]) -> Decoding:
        if isinstance(walk, GreedyWalk):
            tokens = [*walk.tokens, self.asr_model.eos]
            ended = [(tokens, walk.hypothesis.score, walk.hypothesis.parts)]
        else:
            ended = [(e.tokens, e.score, e.parts) for e in walk.ended[: self.nbest]]
        results = [self._result(prompt, *hypothesis) for hypothesis in ended]
        if results:
            text = results[0][0]
            walk.statistics.words = 0 if text is None else len(text.split())
        else:
            logger.warning("there is no N-best result; allow shorter ones with minlenratio")
        return Decoding(results, walk.statistics)

    def _result(
        self, prompt: list[int], tokens: list[int], score: float, parts: Sequence[float]
    ) -> Result:
        names = self.search.strategy.scoring.names
        scores = {name: torch.tensor(part) for name, part in zip(names, parts, strict=True)}
        hypothesis = Hypothesis(torch.tensor([*prompt, *tokens]), torch.tensor(score), scores)
        ids = [token for token in tokens[:-1] if token not in self.hidden_ids]
        pieces = self.converter.ids2tokens(ids)
        text = None if self.tokenizer is None else self.tokenizer.tokens2text(pieces)
        return text, pieces, ids, hypothesis
