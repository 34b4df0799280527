"""Decode options in addition to ESPnet's, and checks against the model and the device."""

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import build_options, check_finite, check_positive, option
from espnet_medusa.decoding.runtime.precision import check_precision
from espnet_medusa.decoding.search.search_options import (
    DRAFTS,
    GREEDY,
    PRECISION,
    Options,
    SearchOptions,
    check_options,
    with_draft_defaults,
)
from espnet_medusa.inference.audio_batch import encodes_only_log_mel
from espnet_medusa.inference.espnet_options import check_espnet_options
from espnet_medusa.networks.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.networks.unit_ctc import UnitCTC
from espnet_medusa.networks.whisper.tokens import WhisperTokens, unused_name

LANGUAGE = "Language"  # group of options in the help of commands
logger = logging.getLogger(__name__)

WITHOUT_DRAFTS: dict[str, Any] = {  # decode options of a search without drafts
    "drafter": None, "draft_model": None, "draft_model_file": None, "lookahead": None,
    "draft_depth": 0, "draft_width": None, "draft_budget": None, "medusa_choices": None,
    "draft_min_probability": None,
}  # fmt: skip

NOT_IN_ESPNET = (  # options that ESPnet's own search does not support
    "acceptance", "drafter", "draft_model", "lookahead", "encoder_precision", "encoder_padding",
    "trace", "patience", "length_penalty", "ctc_window_margin", "suppress_tokens",
    "begin_suppress_tokens", "forced_prefix", "exponential_decay_length_penalty",
)  # fmt: skip


@dataclass(frozen=True)
class DraftModelOptions(SearchOptions):
    draft_model: str | Path | None = option(
        None,
        "ESPnet experiment (folder or config.yaml) that drafts, or a Whisper: hub name, folder, "
        ".pt file",
        group=DRAFTS,
    )
    draft_model_file: str | Path | None = option(
        None, "weights of the experiment in draft_model; none: those in its folder", group=DRAFTS
    )


@dataclass(frozen=True)
class DecodeOptions(DraftModelOptions):
    encoder_precision: str | None = option(
        None,
        "precision of Whisper's encoder, as for decoder_precision; none: that of the decoder",
        group=PRECISION,
    )
    encoder_padding: str | None = option(
        None,
        "encoder rows for Whisper's padding to 30 s: full (one per frame) or merged (one for "
        "several frames); none: merged if our CPU kernels run the encoder (int8, bfloat16)",
        group=PRECISION,
    )
    language: str | None = option(
        None,
        "language code for Whisper's prompt, or detect; none: that of training",
        group=LANGUAGE,
    )
    task: str | None = option(
        None,
        "task for Whisper's prompt: transcribe or translate; none: that of training",
        group=LANGUAGE,
    )

    @property
    def encoding(self) -> str | None:
        """Precision of the encoder; None: that of its weights."""
        return self.encoder_precision or self.decoder_precision

    @property
    def draft_encoding(self) -> str | None:
        """Precision of the draft model's encoder; None: that of its weights."""
        return self.draft_precision or self.encoding


def split_options(
    options: dict[str, Any], names: Mapping[str, Any], kind: type[Options], task: str | None = None
) -> tuple[Options, int]:
    """Remove all options but ESPnet's (``names``); return the removed ones and the batch size.

    ``task`` names a task without greedy search. Raise InputError if an option is not usable.
    """
    check_espnet_options(options, names)
    shared = {field.name for field in fields(kind)} & {*names} & {*options}
    for name in shared:  # ESPnet's option, which ours has in every version
        value = getattr(build_options(kind, {name: options.pop(name)}, "decode config"), name)
        options |= {} if value is None else {name: value}
    ours = {name: options.pop(name) for name in [*options] if name not in names}
    ours, batch_size = build_options(kind, ours, "decode config"), options.pop("batch_size", 1)
    check_positive(batch_size, "batch_size")
    beam_size = options.setdefault("beam_size", names["beam_size"].default)
    check_positive(beam_size, "beam_size")
    check_finite(options)
    for name in ("streaming", "time_sync", "partial_ar"):
        if batch_size > 1 and options.get(name, False):
            raise InputError(f"batch_size: {batch_size}; {name}: true allows only 1")
    check_options(ours, beam_size)
    if task is not None and ours.search == GREEDY:
        raise InputError(f"search: {GREEDY}; allowed with {task}: beam (greedy: beam_size: 1)")
    return ours, batch_size


def with_model_defaults(
    options: Options,
    decoder: torch.nn.Module | None,
    train_args: Namespace,
    beam_size: int,
    language: str | None = None,
) -> Options:
    """Set unset draft options to the ``draft_conf`` of a decoder with heads.

    ``language``: the code that all utterances have, or None.
    """
    if not isinstance(decoder, MultiTokenDecoder) or not decoder.num_heads:
        return options
    options = with_draft_defaults(options, train_args.decoder_conf.get("draft_conf"), language)
    check_options(options, beam_size)
    return options


def with_suppressed_tokens(
    options: Options, model: torch.nn.Module, tokens: WhisperTokens | None
) -> Options:
    """Set unset lists of suppressed tokens to the checkpoint's, or else Whisper's.

    ``tokens`` are Whisper's; None: another vocabulary, without lists of its own. Ids without a
    token, which fill up some vocabularies, are always suppressed.
    """
    lists = dict(getattr(model.decoder, "suppressed", {}))
    if tokens is not None:
        usual = zip(lists, (tokens.suppressed, tokens.begin_suppressed), strict=False)
        lists |= {name: ids for name, ids in usual if lists[name] is None}
    unset = [name for name in lists if getattr(options, name) is None]
    options = replace(options, **{name: lists[name] for name in unset})
    if tokens is not None:
        # Token lists of tokenizers without timestamps have such names for these, too.
        names = enumerate(model.token_list)
        unused = {number for number, name in names if name == unused_name(number)} - {*tokens.times}
        if unused:
            suppressed = {*(options.suppress_tokens or []), *unused}
            options = replace(options, suppress_tokens=sorted(suppressed))
    return options


def check_espnet_decodes(
    options: SearchOptions, batch_size: int, decoder: torch.nn.Module | None
) -> None:
    """Refuse options that ESPnet's search does not support, unless they only shape drafts."""
    given = {name: getattr(options, name, None) for name in NOT_IN_ESPNET}
    for name, value in (given | {"batch_size": batch_size}).items():
        allowed = getattr(DecodeOptions, name, 1)  # the default
        if value != allowed:
            raise InputError(
                f"{name}: {value}; ESPnet's own search, which decodes this model "
                f"({type(decoder).__name__}), allows only {'none' if allowed is None else allowed}"
            )


def check_scoring(
    model: torch.nn.Module, options: DecodeOptions, ctc_weight: float, default: float
) -> None:
    """Refuse CTC weights that the model cannot score with; warn if there is no branch.

    ``default`` is ESPnet's default, which gives no warning: the user may not have set it.
    """
    ctc = getattr(model, "ctc", None)
    if not 0 <= ctc_weight <= 1 or (ctc is None and ctc_weight == 1):
        allowed = "0.0; this model has no CTC branch" if ctc is None else "0 to 1"
        raise InputError(f"ctc_weight: {ctc_weight}; allowed: {allowed}")
    if ctc is None and ctc_weight not in (0.0, default):
        logger.warning(f"ctc_weight: {ctc_weight}: not used, because the model has no CTC branch")
    if isinstance(ctc, UnitCTC) and options.search != GREEDY and ctc_weight != 0:
        raise InputError(
            f"ctc_weight: {ctc_weight}; allowed: 0.0 with model_conf.ctc_units; this branch "
            "drafts (drafter: ctc) but cannot score: its units are not the decoder's tokens"
        )


def check_precisions(options: DecodeOptions, model: torch.nn.Module, device: torch.device) -> None:
    """Refuse precisions that the device or the encoder does not support."""
    for name in ("decoder_precision", "encoder_precision", "draft_precision"):
        value = getattr(options, name)
        if value is not None:
            check_precision(value, device, name)
    if options.encoder_precision is not None and not encodes_only_log_mel(model):
        raise InputError(
            f"encoder_precision: {options.encoder_precision}; allowed with encoder: hf_whisper "
            "without frontend, normalization, pre-encoder and post-encoder; omit it here"
        )
