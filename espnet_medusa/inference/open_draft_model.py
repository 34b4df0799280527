"""A model that drafts, from its files: an ESPnet experiment or a Whisper."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from espnet_medusa.convert.experiment import CONFIG
from espnet_medusa.draft.model import DraftModelProposer
from espnet_medusa.errors import InputError
from espnet_medusa.files.checkpoint import load_weights
from espnet_medusa.inference.audio_batch import (
    SpeechEncoder,
    audio_limits,
    encode_alike,
    model_encoder,
    whisper_encoder,
)
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.inference.draft_model import DraftModel
from espnet_medusa.inference.experiment import Unwritten, find_weights, put_weights
from espnet_medusa.inference.whisper_labels import whisper_labels
from espnet_medusa.model.espnet_transformer import searchable, unknown_part
from espnet_medusa.model.heads import NO_HEADS
from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.options import read_config
from espnet_medusa.vocabulary.tokenizers import hugging_face_vocabulary, token_list_vocabulary
from espnet_medusa.whisper.pretrained import open_whisper
from espnet_medusa.whisper.text import read_text, tokenizer_of_type
from espnet_medusa.whisper.tokens import read_whisper_tokens


class MainModel(Protocol):
    """What a draft model has to suit: ``Speech2Text``."""

    asr_model: torch.nn.Module
    asr_train_args: Namespace
    search_options: DecodeOptions
    encoder: SpeechEncoder
    sample_rate_hz: int
    device: str
    dtype: str


def open_draft_model_for(main: MainModel) -> tuple[DraftModelProposer, DraftModel]:
    """Open what the options name, and refuse what cannot draft for the main model.

    Raises:
        InputError: There is no such model, or it reads other audio.
    """
    options, model, args = main.search_options, main.asr_model, main.asr_train_args
    draft = open_draft_model(
        *(str(options.draft_model), options.draft_model_file),
        *(main.device, getattr(torch, main.dtype)),
        options.draft_encoding,
    )
    if draft.sample_rate_hz != main.sample_rate_hz:
        raise InputError(
            f"draft_model: {draft.name} expects {draft.sample_rate_hz} Hz; allowed: the main "
            f"model's {main.sample_rate_hz} Hz"
        )
    vocabulary = partial(token_list_vocabulary, model.token_list, args.token_type, args.bpemodel)
    precision = options.draft_precision or options.decoder_precision
    proposer = draft.proposer(model.token_list, model.eos, vocabulary, precision)
    if encode_alike(main.encoder, draft.encoder):
        draft = replace(draft, encoder=main.encoder)
    return proposer, draft


def open_draft_model(
    name: str,
    model_file: str | None,
    device: str,
    dtype: torch.dtype,
    encoder_precision: str | None = None,
) -> DraftModel:
    """Read a model that shall draft.

    Args:
        name: An experiment's folder or its config.yaml; or a Whisper, as ``whisper_model``.
        model_file: Weights of the experiment; None: those that training leaves beside the config.
        device: To compute on.
        dtype: To compute in.
        encoder_precision: Of its encoder, as the decode option; None: ``dtype``.

    Raises:
        InputError: There is no such model, or its decoder is not known.
    """
    path = Path(name).expanduser()
    config = path if path.suffix in (".yaml", ".yml") else path / CONFIG
    if config.is_file():
        return _open_experiment(name, config, model_file, device, dtype, encoder_precision)
    if config == path:
        raise InputError(f"draft_model: {name}: no such file; mend the path")
    if model_file is not None:
        raise InputError(
            f"draft_model_file: {model_file}; allowed where draft_model is an experiment with its "
            f"{CONFIG}; '{name}' has none"
        )
    try:
        return _open_whisper(name, device, dtype, encoder_precision)
    except InputError as error:
        raise InputError(
            f"draft_model: {error}; an experiment of ESPnet is allowed, too: its folder or {CONFIG}"
        ) from error


def _open_experiment(
    name: str,
    config: Path,
    model_file: str | None,
    device: str,
    dtype: torch.dtype,
    encoder_precision: str | None,
) -> DraftModel:
    from espnet2.tasks.asr import ASRTask  # Slow to import.

    weights_file = Path(model_file or find_weights(config.parent, "draft_model"))
    weights = load_weights(weights_file)
    args = Namespace(**read_config(config, "give draft_model the folder that training left"))
    try:
        with Unwritten():
            model = ASRTask.build_model(args)
    except (AttributeError, TypeError) as error:
        raise InputError(f"draft_model: {config}: {error}; give an experiment of ASR") from error
    decoder = searchable(getattr(model, "decoder", None))
    if decoder is None:
        raise InputError(
            f"draft_model: {name}: {unknown_part(getattr(model, 'decoder', None))}; allowed: "
            "decoder: whisper_medusa, speech_llama or ESPnet's transformer"
        )
    put_weights(weights, model, weights_file)
    del weights
    model.to(device=device, dtype=dtype).eval()
    whisper = None
    if whisper_labels(args) is not None:
        whisper = read_whisper_tokens(tokenizer_of_type(args.token_type, args.bpemodel))
    limits = audio_limits(model.encoder, args)
    return DraftModel(
        name, model_encoder(model, encoder_precision), decoder,
        [*model.token_list], model.sos, model.eos,
        partial(token_list_vocabulary, model.token_list, args.token_type, args.bpemodel),
        whisper, *limits,
    )  # fmt: skip


def _open_whisper(
    name: str, device: str, dtype: torch.dtype, encoder_precision: str | None
) -> DraftModel:
    config, text = open_whisper(name).config, read_text(name)
    encoder = HFWhisperEncoder(whisper_model=name)
    decoder = WhisperMedusaDecoder(
        config.vocab_size, config.d_model, whisper_model=name, heads=NO_HEADS
    )
    for half in (encoder, decoder):
        half.to(device=device, dtype=dtype).eval()
    limits = audio_limits(encoder, Namespace())
    return DraftModel(
        name, whisper_encoder(encoder, encoder_precision), decoder,
        [*text.tokens], text.start, text.end,
        partial(hugging_face_vocabulary, text.tokenizer), text.whisper, *limits,
    )  # fmt: skip
