"""ESPnet's Speech2Text with multi-token greedy search beside its beam search."""

import inspect
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from espnet2.bin.asr_inference import Speech2Text as ESPnetSpeech2Text

from espnet_medusa.accept import AcceptanceOptions, build_rule
from espnet_medusa.checkpoint import check_shapes, load_weights
from espnet_medusa.compat import Hypothesis
from espnet_medusa.decoder.tree_decoder import TreeDecoder
from espnet_medusa.decoder.tree_scorer import NodeReference
from espnet_medusa.errors import InputError
from espnet_medusa.log_mel import SAMPLE_RATE_HZ
from espnet_medusa.options import build_options, check_choice
from espnet_medusa.plugin import register
from espnet_medusa.search.greedy import GreedySearch
from espnet_medusa.statistics import DecodingStatistics

logger = logging.getLogger(__name__)

BEAM, GREEDY = "beam", "greedy"


@dataclass(frozen=True)
class SearchOptions(AcceptanceOptions):
    """Decode options beside ESPnet's own."""

    search: str = BEAM  # beam: ESPnet's BatchBeamSearch; greedy: several tokens per call
    num_drafts: int | None = None  # tokens drafted per call; None: all heads, 0: plain greedy


class Speech2Text(ESPnetSpeech2Text):
    """Audio in, n-best list out; same call and same return value as ESPnet's.

    Args:
        asr_train_config: The experiment's ``config.yaml``.
        asr_model_file: Its weights.
        options: ESPnet's other arguments and the fields of ``SearchOptions``.

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
        self.search_options = build_options(SearchOptions, own, "decode config")
        check_choice(self.search_options.search, [BEAM, GREEDY], "search")
        rule = build_rule(self.search_options)
        self._build(options)
        self.greedy = None
        if self.search_options.search == GREEDY:
            self.greedy = self._build_greedy(rule, options)
        self.sample_rate_hz, self.window_s = _audio_limits(self.asr_model, self.asr_train_args)
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
        weights = load_weights(Path(model_file))
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
            check_shapes(weights, self.asr_model.state_dict(), model_file, complete=True)

    def _build_greedy(self, rule, options: dict[str, Any]) -> GreedySearch:
        if not isinstance(self.asr_model.decoder, TreeDecoder):
            raise InputError(
                f"search: greedy needs decoder: whisper_medusa, this model has "
                f"{type(self.asr_model.decoder).__name__}; allowed here: beam"
            )
        for name in ("lm_train_config", "ngram_file"):
            if options.get(name) is not None:
                logger.warning(f"{name} is not used: search: greedy asks the decoder alone")
        if options.get("nbest", 1) != 1:
            raise InputError(f"nbest: {options['nbest']}; allowed with search: greedy: 1")
        return GreedySearch(
            self.asr_model.decoder, rule, self.asr_model.eos, self.search_options.num_drafts
        )

    @staticmethod
    def from_pretrained(model_tag: str | None = None, **options) -> "Speech2Text":
        """Build from a tag of ESPnet's model zoo, which downloads and unpacks it."""
        if model_tag is not None:
            from espnet_model_zoo.downloader import ModelDownloader

            options |= ModelDownloader().download_and_unpack(model_tag)
        return Speech2Text(**options)

    @torch.no_grad()
    def __call__(self, speech) -> list[tuple[str | None, list[str], list[int], Hypothesis]]:
        """Decode one utterance.

        Args:
            speech: (samples,) in [-1, 1], at the model's sample rate.

        Returns:
            N-best list of text, tokens, token ids and hypothesis.
        """
        started = time.perf_counter()
        self.statistics = DecodingStatistics(audio_seconds=len(speech) / self.sample_rate_hz)
        results = super().__call__(speech)
        self.statistics.total_seconds = time.perf_counter() - started
        if results and isinstance(results, list) and results[0][0] is not None:
            self.statistics.words = len(results[0][0].split())
        return results

    def _decode_single_sample(self, enc: torch.Tensor):
        if self.greedy is None and not isinstance(self.asr_model.decoder, TreeDecoder):
            return super()._decode_single_sample(enc)
        started = time.perf_counter()
        nbest = self._greedy_hypotheses(enc) if self.greedy else self._beam_hypotheses(enc)
        self.statistics.decoder_seconds = time.perf_counter() - started
        return [self._result(hypothesis) for hypothesis in nbest[: self.nbest]]

    def _beam_hypotheses(self, enc: torch.Tensor) -> list[Hypothesis]:
        nbest = self.beam_search(x=enc, maxlenratio=self.maxlenratio, minlenratio=self.minlenratio)
        if nbest:
            reference = nbest[0].states.get("decoder")
            self.statistics.tokens = len(nbest[0].yseq) - len(self._prompt())
            if isinstance(reference, NodeReference):
                self.statistics.decoder_calls = reference.shared.state.calls
                self.statistics.nodes = reference.shared.state.nodes
        return nbest

    def _greedy_hypotheses(self, enc: torch.Tensor) -> list[Hypothesis]:
        prompt = torch.tensor([self._prompt()], device=enc.device)
        found = self.greedy(
            enc[None],
            torch.tensor([len(enc)], device=enc.device),
            prompt,
            [_length_limit(self.maxlenratio, len(enc), unlimited=len(enc))],
            [_length_limit(self.minlenratio, len(enc), unlimited=0)],
        )[0]
        counts = found.statistics
        counts.audio_seconds = self.statistics.audio_seconds
        self.statistics = counts
        tokens = [*self._prompt(), *found.tokens, self.asr_model.eos]
        names = [self.asr_model.token_list[token] for token in found.tokens]
        logger.info("best hypo: " + "".join(names) + "\n")
        score = torch.tensor(found.score)
        return [Hypothesis(torch.tensor(tokens), score, {"decoder": score})]

    def _prompt(self) -> list[int]:
        return list(self.beam_search.hyp_primer or [self.asr_model.sos])

    def _result(self, hypothesis: Hypothesis):
        ids = hypothesis.yseq.tolist()[len(self._prompt()) : -1]
        ids = [token for token in ids if token not in self.hidden_ids]
        tokens = self.converter.ids2tokens(ids)
        text = None if self.tokenizer is None else self.tokenizer.tokens2text(tokens)
        return text, tokens, ids, hypothesis


def _length_limit(ratio: float, frames: int, unlimited: int) -> int:
    """ESPnet's maxlenratio and minlenratio: a ratio, or if negative an absolute number."""
    if ratio == 0:
        return unlimited
    return max(1, int(ratio * frames)) if ratio > 0 else -int(ratio)


def _audio_limits(model: torch.nn.Module, train_args) -> tuple[int, float | None]:
    """The sample rate in Hz that a model expects, and the longest audio it takes, if any."""
    window_samples = getattr(model.encoder, "window_samples", None)
    if window_samples is not None:
        return SAMPLE_RATE_HZ, window_samples / SAMPLE_RATE_HZ
    rate = (getattr(train_args, "frontend_conf", None) or {}).get("fs", SAMPLE_RATE_HZ)
    if isinstance(rate, str):
        rate = int(float(rate.lower().removesuffix("k")) * (1000 if "k" in rate.lower() else 1))
    return int(rate), None
