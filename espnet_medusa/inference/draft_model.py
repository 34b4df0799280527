"""A second, smaller model that drafts: an ESPnet experiment or a Whisper."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import yaml

from espnet_medusa.checkpoint import check_shapes, load_weights
from espnet_medusa.draft.model import DraftModelSurrogate
from espnet_medusa.errors import InputError
from espnet_medusa.inference.audio_batch import (
    AudioBatch,
    SpeechEncoder,
    audio_limits,
    model_encoder,
    whisper_encoder,
)
from espnet_medusa.model.espnet_transformer import tree_scorer_of, unknown_part
from espnet_medusa.model.heads import NO_HEADS
from espnet_medusa.model.multi_token_decoder import TOKEN_COUNTS
from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.plugin import WHISPER, register
from espnet_medusa.runtime.espnet_scorer import TreeScorer
from espnet_medusa.tree.surrogate import DraftInput
from espnet_medusa.vocabulary.translation import Translation
from espnet_medusa.vocabulary.vocabulary import (
    Vocabulary,
    hugging_face_vocabulary,
    token_list_vocabulary,
)
from espnet_medusa.whisper.pretrained import open_whisper
from espnet_medusa.whisper.text import load_safely
from espnet_medusa.whisper.token_files import read_text
from espnet_medusa.whisper.tokens import (
    TRANSCRIBE,
    TRANSLATE,
    WhisperTokens,
    read_whisper_tokens,
)

CONFIG = "config.yaml"
CHECKPOINTS = (  # of an experiment, the first that is there
    "model.pth", "valid.acc.ave.pth", "valid.acc_heads.ave.pth", "valid.loss.ave.pth",
    "valid.acc.best.pth", "valid.loss.best.pth",
)  # fmt: skip
# Whisper's token list takes pure Python seconds.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FALLBACK = "en"  # a draft need not know the language, only be right now and then


@dataclass(frozen=True)
class DraftModel:
    """What drafting asks of a model.

    Attributes:
        name: As given.
        encoder: Its encoder.
        scorer: Its trained decoder.
        tokens: V names, by id.
        start, end: Ids of the symbols around a text.
        vocabulary: Opens what its tokens stand for.
        whisper: Its special tokens where it knows Whisper's prompts, else None.
        sample_rate_hz: That it expects.
        window_s: Longest audio; None without limit.
    """

    name: str
    encoder: SpeechEncoder
    scorer: TreeScorer
    tokens: list[str]
    start: int
    end: int
    vocabulary: Callable[[], Vocabulary]
    whisper: WhisperTokens | None
    sample_rate_hz: int
    window_s: float | None

    def surrogate(
        self,
        tokens: Sequence[str],
        eos: int,
        vocabulary: Callable[[], Vocabulary],
        precision: str | None,
    ) -> DraftModelSurrogate:
        """It as searches ask it; of another vocabulary, with a translation.

        Args:
            tokens: V names of the main model's tokens, by id.
            eos: Its end symbol.
            vocabulary: Opens what they stand for.
            precision: As ``decoder_precision``.

        Raises:
            InputError: What tokens stand for is not known.
        """
        translation = None
        if self.tokens != [*tokens] or self.end != eos:
            translation = Translation.between(vocabulary(), self.vocabulary(), len(tokens))
        return DraftModelSurrogate(self.scorer.runtime(precision), eos, translation)

    def read(
        self, audio: AudioBatch, prompts: Sequence[Sequence[int]], whisper: WhisperTokens | None
    ) -> list[DraftInput]:
        """What it drafts U utterances from.

        Args:
            audio: U utterances.
            prompts: Of the main model, U.
            whisper: The main model's special tokens, if they are Whisper's.
        """
        memory, frames = audio.encode(self.encoder)
        return [
            DraftInput(rows[:length], self._prompt(prompt, whisper))
            for rows, length, prompt in zip(memory, frames.tolist(), prompts, strict=True)
        ]

    def _prompt(self, prompt: Sequence[int], whisper: WhisperTokens | None) -> list[int]:
        """Its own prompt for language and task of the main model's."""
        if self.whisper is None:
            return [self.start]
        if not self.whisper.languages:
            return self.whisper.prompt(None)
        language, task = FALLBACK, TRANSCRIBE
        if whisper is not None:
            names = {number: code for code, number in whisper.languages.items()}
            spoken = [names[token] for token in prompt if token in names]
            language = next((code for code in spoken if code in self.whisper.languages), language)
            task = TRANSLATE if whisper.translate in prompt else task
        return self.whisper.prompt(language, task)

    def release(self) -> None:
        """Give back the memory of decoder weights that a surrogate has laid out anew."""
        self.scorer.release()


def open_draft_model(
    name: str, model_file: str | None, device: str, dtype: torch.dtype
) -> DraftModel:
    """Read a model that shall draft.

    Args:
        name: An experiment's folder or its config.yaml; or a Whisper, as ``whisper_model``.
        model_file: Weights of the experiment; None: those that training leaves beside the config.
        device: To compute on.
        dtype: To compute in.

    Raises:
        InputError: There is no such model, or its decoder is not known.
    """
    path = Path(name).expanduser()
    config = path if path.suffix in (".yaml", ".yml") else path / CONFIG
    if config.is_file():
        return _open_experiment(name, config, model_file, device, dtype)
    if config == path:
        raise InputError(f"draft_model: {name}: no such file; mend the path")
    if model_file is not None:
        raise InputError(
            f"draft_model_file: {model_file}; allowed where draft_model is an experiment with its "
            f"{CONFIG}; '{name}' has none"
        )
    try:
        return _open_whisper(name, device, dtype)
    except InputError as error:
        raise InputError(
            f"draft_model: {error}; an experiment of ESPnet is allowed, too: its folder or {CONFIG}"
        ) from error


def _open_experiment(
    name: str, config: Path, model_file: str | None, device: str, dtype: torch.dtype
) -> DraftModel:
    from espnet2.tasks.asr import ASRTask  # Slow to import.

    register()
    weights_file = _checkpoint(config.parent) if model_file is None else Path(model_file)
    weights = load_weights(weights_file)
    args = _read_config(config)
    try:
        model = ASRTask.build_model(args)
    except (AttributeError, TypeError) as error:
        raise InputError(f"draft_model: {config}: {error}; give an experiment of ASR") from error
    scorer = tree_scorer_of(getattr(model, "decoder", None))
    if scorer is None:
        raise InputError(
            f"draft_model: {name}: {unknown_part(getattr(model, 'decoder', None))}; allowed: "
            "decoder: whisper_medusa, speech_llama or ESPnet's transformer"
        )
    expected = {
        part: value
        for part, value in model.state_dict().items()
        if part in weights or not part.endswith(TOKEN_COUNTS)
    }
    check_shapes(weights, expected, weights_file, complete=True)
    model.load_state_dict(weights, strict=False)
    model.to(device=device, dtype=dtype).eval()
    whisper = None
    if getattr(args, "preprocessor", None) == WHISPER:
        whisper = read_whisper_tokens(load_safely(args.bpemodel))
    limits = audio_limits(model.encoder, args)
    return DraftModel(
        name, model_encoder(model), scorer, [*model.token_list], model.sos, model.eos,
        partial(token_list_vocabulary, model.token_list, args.token_type, args.bpemodel),
        whisper, *limits,
    )  # fmt: skip


def _read_config(path: Path) -> Namespace:
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"draft_model: {path}: cannot be read ({reason})") from error
    if not isinstance(config, dict):
        raise InputError(f"draft_model: {path}: holds no options; give what training wrote")
    return Namespace(**config)


def _checkpoint(folder: Path) -> Path:
    for name in CHECKPOINTS:
        if (folder / name).is_file():
            return folder / name
    found = ", ".join(sorted(path.name for path in folder.glob("*.pth"))) or "none"
    raise InputError(
        f"draft_model: {folder}: which weights? give draft_model_file; .pth files there: {found}"
    )


def _open_whisper(name: str, device: str, dtype: torch.dtype) -> DraftModel:
    config, text = open_whisper(name).config, read_text(name)
    encoder = HFWhisperEncoder(whisper_model=name)
    decoder = WhisperMedusaDecoder(
        config.vocab_size, config.d_model, whisper_model=name, heads=NO_HEADS
    )
    for half in (encoder, decoder):
        half.to(device=device, dtype=dtype).eval()
    limits = audio_limits(encoder, Namespace())
    return DraftModel(
        name, whisper_encoder(encoder), decoder, [*text.tokens], text.start, text.end,
        partial(hugging_face_vocabulary, text.tokenizer), text.whisper, *limits,
    )  # fmt: skip
