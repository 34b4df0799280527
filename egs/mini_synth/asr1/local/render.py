"""Synthesize planned utterances into FLAC files."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import soundfile
import soxr
from corpus_plan import Utterance
from espeak import Speaker
from noise import add_noise, set_level

from espnet_medusa.data.files.atomic import naming

SAMPLE_RATE_HZ = 16000


def render(utterance: Utterance, speaker: Speaker) -> np.ndarray:
    """Synthesize one utterance and add its noise.

    Returns:
        Samples (float32, within -0.95..0.95, shape (N,)) at 16 kHz.
    """
    samples, rate = speaker.speak(
        utterance.text, utterance.voice, utterance.rate_wpm, utterance.pitch
    )
    samples = soxr.resample(samples, rate, SAMPLE_RATE_HZ)
    margins = [round(s * SAMPLE_RATE_HZ) for s in (utterance.lead_s, utterance.tail_s)]
    samples = np.pad(samples, margins)
    generator = np.random.default_rng(utterance.seed)
    samples = add_noise(samples, utterance.snr_db, utterance.noise_exponent, generator)
    return set_level(samples, utterance.level_db)


def audio_path(audio_dir: Path, utterance: Utterance) -> Path:
    """Return the audio file of an utterance: ``<audio_dir>/<set>/<utterance id>.flac``."""
    return audio_dir / utterance.set_name / f"{utterance.utterance_id}.flac"


def render_files(utterances: Sequence[Utterance], audio_dir: Path, seed: int) -> list[float]:
    """Render utterances into 16-bit FLAC files, whose folders must exist.

    Args:
        audio_dir: see :func:`audio_path`.

    Returns:
        Duration of each in seconds.
    """
    speaker = Speaker(seed)
    durations_s = []
    for utterance in utterances:
        samples = render(utterance, speaker)
        path = audio_path(audio_dir, utterance)
        with naming(path):
            soundfile.write(path, samples, SAMPLE_RATE_HZ, subtype="PCM_16", format="FLAC")
        durations_s.append(len(samples) / SAMPLE_RATE_HZ)
    return durations_s


def render_files_in_new_process(
    utterances: Sequence[Utterance], audio_dir: Path, seed: int
) -> list[float]:
    """Call :func:`render_files` in a new process.

    The speech engine carries state from call to call. Starting from a fresh one each time, the
    samples do not depend on what else was synthesized, nor on how many processes share the work.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        return executor.submit(render_files, utterances, audio_dir, seed).result()
