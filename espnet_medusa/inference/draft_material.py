"""What a model can draft with, and what its drafters read of utterances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from espnet_medusa.draft.ctc_hypothesis import Retokenization
from espnet_medusa.inference.audio_batch import AudioBatch
from espnet_medusa.inference.draft_model import DraftModel
from espnet_medusa.inference.open_draft_model import MainModel, open_draft_model_for
from espnet_medusa.model.espnet_transformer import searchable
from espnet_medusa.model.unit_ctc import UnitCTC
from espnet_medusa.search.drafters import DraftSources, hide_tokens
from espnet_medusa.search.options import CTC_MODEL
from espnet_medusa.tree.proposer import DraftInput, Proposer
from espnet_medusa.vocabulary.tokenizers import token_list_vocabulary
from espnet_medusa.whisper.prompts import WhisperPrompts


class DraftedModel(MainModel, Protocol):
    """What is read of a model: ``Speech2Text``."""

    whisper: WhisperPrompts | None
    draft_model: DraftModel | None
    window_s: float | None


def draft_sources(main: DraftedModel) -> DraftSources:
    """What could draft beside heads; a draft model is opened when it is asked for."""
    model, ctc, retokenization = main.asr_model, None, None
    if getattr(model, "ctc", None) is not None:
        ctc = model.ctc.log_softmax
        if isinstance(model.ctc, UnitCTC):

            def retokenization() -> Retokenization:
                return _retokenization(main)

        elif main.whisper is not None:  # labels of CTC hold the prompt
            ctc = hide_tokens(ctc, main.whisper.tokens.prompts, model.blank_id)
    given = main.search_options.draft_model is not None
    decoder = searchable(model.decoder)
    return DraftSources(
        ctc,
        model.blank_id,
        (lambda: _open_draft_model(main)) if given else None,
        None if decoder is None else decoder.draft_vocabulary,
        retokenization,
    )


def draft_inputs(
    main: DraftedModel, audio: AudioBatch, prompts: Sequence[list[int]]
) -> list[DraftInput] | None:
    """What a draft model reads of U utterances, or CTC; None: the same as the search.

    Args:
        main: Whose search drafts.
        audio: As it was encoded: features of the same kind are not computed again.
        prompts: U, the search's.
    """
    if main.draft_model is None:
        if main.encoder.whisper is None:
            return None
        rows = zip(unpadded_frames(main, audio, *audio.encode(main.encoder)), prompts, strict=True)
        return [DraftInput(speech, tokens) for speech, tokens in rows]
    tokens = None if main.whisper is None else main.whisper.tokens
    inputs = main.draft_model.read(audio, prompts, tokens)
    if main.search_options.drafter != CTC_MODEL:
        return inputs
    rows = zip(inputs, unpadded_frames(main, audio, *audio.encode(main.encoder)), strict=True)
    return [replace(one, speech=speech) for one, speech in rows]


def _retokenization(main: DraftedModel) -> Retokenization:
    model, args = main.asr_model, main.asr_train_args
    tokens = token_list_vocabulary(model.token_list, args.token_type, args.bpemodel)
    return Retokenization(model.ctc.units.contents, tokens)


def _open_draft_model(main: DraftedModel) -> Proposer:
    proposer, main.draft_model = open_draft_model_for(main)
    windows = (main.window_s, main.draft_model.window_s)
    main.window_s = min((window for window in windows if window is not None), default=None)
    return proposer


def unpadded_frames(
    main: DraftedModel, audio: AudioBatch, memory: torch.Tensor, frames: torch.Tensor
) -> list[torch.Tensor]:
    """Memories (S', D) without the silence that fills Whisper's window: CTC hears nothing there.

    Args:
        main: Whose encoder it was.
        audio: U utterances.
        memory: (U, S, D) encoder output.
        frames: (U,) lengths of it.
    """
    if main.encoder.whisper is None:
        return [row[:length] for row, length in zip(memory, frames.tolist(), strict=True)]
    return main.encoder.whisper.unpadded(memory, frames, audio.lengths)
