"""Writes an experiment's Whisper in everybody's form."""

from collections.abc import Sequence
from pathlib import Path

from inputs import Utterance

from espnet_medusa.convert.experiment import CONFIG, read_experiment
from espnet_medusa.convert.write_ctranslate2 import write_ctranslate2
from espnet_medusa.convert.write_whisper import write_hugging_face
from espnet_medusa.errors import InputError
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.tuning.available import DraftModelFiles, available
from espnet_medusa.whisper.tokens import DETECT
from peers.contestant import FLOAT32
from peers.way import DRAFTERS
from peers.whisper_subject import WhisperSubject


def make_whisper_subject(
    folder: Path,
    name: str,
    exp_dir: Path,
    draft_model: str | None,
    utterances: Sequence[Utterance],
    long: bool = False,
) -> WhisperSubject:
    """Write the model and the speech that it takes.

    Args:
        folder: To write.
        name: For tables.
        exp_dir: A Whisper as ``espnet-medusa-convert`` makes it, or trained.
        draft_model: The decode option.
        utterances: Those longer than the model's window are left out.
        long: Or are not, as whoever gets them takes any length.

    Raises:
        InputError: It is no Whisper, or none of the utterances is short enough.
    """
    config, weights = exp_dir / CONFIG, find_weights(exp_dir, "whisper")
    speech2text = Speech2Text(config, weights, draft_depth=0, ctc_weight=0.0, lm_weight=0.0)
    if speech2text.whisper is None:
        raise InputError(f"{exp_dir}: no Whisper; convert one with espnet-medusa-convert")
    language = speech2text.whisper.language or "en"  # English models have no choice
    if language == DETECT:
        raise InputError(f"{exp_dir}: language: {DETECT}; allowed: a code, which others get, too")
    models = [] if draft_model is None else [DraftModelFiles(draft_model)]
    there = available(speech2text, DRAFTERS, models)
    windows = (speech2text.window_s, there.window_s)
    window = min(one for one in windows if one is not None)
    kept = {one.id: one.speech for one in utterances if long or one.seconds <= window}
    if not kept:
        raise InputError(f"no utterance of at most {window:g} s; give others with --data_dir")
    checkpoint = read_experiment(exp_dir, weights)
    subject = WhisperSubject(
        folder, name, str(config), str(weights), language, draft_model,
        there.kinds, [*kept], there.left_out,
    )  # fmt: skip
    for target in (subject.hugging_face, subject.ctranslate2):
        target.mkdir(parents=True)
    write_hugging_face(checkpoint, subject.hugging_face)
    write_ctranslate2(checkpoint, subject.ctranslate2, FLOAT32)
    subject.save(kept)
    return subject
