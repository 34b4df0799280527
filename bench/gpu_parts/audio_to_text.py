"""Measure a real Whisper from audio to text, greedy, in batches: times, word errors and memory."""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np
from contestants.base import Result, Setup, Timed
from contestants.hugging_face import HuggingFace
from contestants.subjects import SpeechSubject
from contestants.ways import BASELINE, FLOAT32
from figures import MILLI, word_errors
from inputs import Utterance, enter_experiment, enter_recipe, read_utterances

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.runtime.process import keep_freed_memory
from espnet_medusa.inference.batches import make_batches
from espnet_medusa.inference.convert.experiment import CONFIG, read_experiment
from espnet_medusa.inference.convert.write_whisper import write_hugging_face
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.recipes.scoring.sclite import Counts
from espnet_medusa.recipes.tuning.available import available
from espnet_medusa.recipes.tuning.tuned_model import TunedASR
from gpu_parts.part import OURS, TRANSFORMERS, Part, Row, forget_peak, free_memory, peak_bytes, run

WARM_UP_UTTERANCES = 16  # enough for calls of all usual sizes
# U utterances (samples,) to their texts.
Transcribe = Callable[[Sequence[np.ndarray]], Timed]


def measure(part: Part, args: Namespace) -> None:
    exp_dir, data_dir = Path(args.whisper), Path(args.data_dir)
    keep_freed_memory()  # as asr_inference does
    enter_recipe(data_dir)
    utterances = read_utterances(data_dir, args.num_utterances)
    enter_experiment(exp_dir)
    model = open_whisper(exp_dir, args.device, draft_depth=0)
    window = model.window_s
    speech = [one for one in utterances if window is None or one.seconds <= window]
    if not speech:
        raise InputError(f"{data_dir}: no utterance of at most {window:g} s; give others")
    found = available(TunedASR(model), args.drafters, [])
    part.results.left_out |= {f"{OURS}, drafts": reason for reason in found.left_out}
    drafters = [BASELINE, *dict.fromkeys(one.kind for one in found.drafters.values())]
    language = model.whisper.language or "en"  # English models have no language prompt
    del model, found
    free_memory()
    for weights in sorted(args.weights, key=lambda one: one != FLOAT32):
        for drafts in drafters if OURS in args.contestants else ():
            begin = partial(ours, exp_dir, args.device, weights, drafts)
            measure_batches(part, args, speech, (OURS, weights, drafts), begin)
    if TRANSFORMERS not in args.contestants:
        return
    with tempfile.TemporaryDirectory() as folder:
        subject = SpeechSubject(Path(folder), "", [], "", "", language)
        subject.hugging_face.mkdir()
        checkpoint = read_experiment(exp_dir, find_weights(exp_dir, "whisper"))
        write_hugging_face(checkpoint, subject.hugging_face)
        del checkpoint
        for weights in args.weights:
            begin = partial(transformers, subject, args, weights)
            measure_batches(part, args, speech, (TRANSFORMERS, weights, BASELINE), begin, peer=True)


def measure_batches(
    part: Part,
    args: Namespace,
    utterances: Sequence[Utterance],
    who: tuple[str, str, str],
    begin: Callable[[], Transcribe],
    peer: bool = False,
) -> None:
    """Measure all batch sizes of a contestant with its weights and drafts."""
    opened: list[Transcribe] = []

    def row(batch_size: int) -> Row:
        if not opened:  # here, because a failure to open belongs to this row
            opened.append(begin())
        texts, figures = transcribe(opened[0], utterances, batch_size, args.device)
        reference = part.find({"reference": True})
        if reference is None and who[0] == OURS:
            figures |= {"reference": True, "texts": texts}
        elif reference is not None:
            same = map(str.__eq__, reference["texts"], texts)
            figures["same_text"] = f"{sum(same)}/{len(texts)}"
        return figures

    names = ("contestant", "weights", "drafts")
    for batch_size in args.batch_sizes:
        key = dict(zip(names, who, strict=True)) | {"batch_size": batch_size}
        part.measure(key, partial(row, batch_size), peer)


def transcribe(
    work: Transcribe, utterances: Sequence[Utterance], batch_size: int, device: str
) -> tuple[list[str], Row]:
    """Transcribe N utterances, similar lengths together; return texts and figures.

    Milliseconds are per utterance, medians over full batches.
    """
    batches = make_batches([len(one.speech) for one in utterances], batch_size)
    speeches = [[utterances[index].speech for index in batch] for batch in batches]
    forget_peak(device)
    for batch in speeches[: -(-WARM_UP_UTTERANCES // batch_size)]:
        work(batch)
    timed = [*map(work, speeches)]
    results: dict[int, Result] = {}
    for batch, one in zip(batches, timed, strict=True):
        results |= zip(batch, one.results, strict=True)
    texts = [results[index].text for index in range(len(utterances))]
    size = len(batches[0])
    full = [one for one in timed if len(one.results) == size]
    errors = word_errors([one.text for one in utterances], texts)
    figures = {
        "utterances": len(texts),
        "audio_seconds": sum(one.seconds for one in utterances),
        "encoder_ms": MILLI * median(one.encoder_seconds for one in full) / size,
        "decoder_ms": MILLI * median(one.decoder_seconds for one in full) / size,
        "ms": MILLI * median(one.seconds for one in full) / size,
        "wer": sum(errors, Counts()).error_percent,
        "peak_bytes": peak_bytes(device),
    }
    if results[0].counts is not None:
        calls = [result.counts["decoder_calls"] for result in results.values()]
        tokens = sum(result.counts["tokens"] for result in results.values())
        figures["calls"] = mean(calls)
        figures["tokens_per_call"] = tokens / sum(calls) if any(calls) else 0.0
    return texts, figures


def open_whisper(exp_dir: Path, device: str, **options) -> Speech2Text:
    """Open our greedy search."""
    alone = {"search": "greedy", "ctc_weight": 0.0, "lm_weight": 0.0, "device": device}
    weights = find_weights(exp_dir, "whisper")
    model = Speech2Text(exp_dir / CONFIG, weights, **alone | options)
    if model.whisper is None:
        raise InputError(f"{exp_dir}: no Whisper; convert one with espnet-medusa-convert")
    return model


def ours(exp_dir: Path, device: str, weights: str, drafts: str) -> Transcribe:
    """Open our search, with encoder and decoder in one precision."""
    drafting = {"draft_depth": 0} if drafts == BASELINE else {"drafter": drafts}
    numbers = {"decoder_precision": weights, "encoder_precision": weights}
    model = open_whisper(exp_dir, device, **drafting | numbers)
    model.release_weights()

    def work(speeches: Sequence[np.ndarray]) -> Timed:
        decodings = model.decode(speeches)
        results = [
            Result((one.results[0][0] or "") if one.results else "", counts=vars(one.statistics))
            for one in decodings
        ]
        decoder = sum(one.statistics.decoder_seconds for one in decodings)
        total = sum(one.statistics.total_seconds for one in decodings)
        return Timed(results, total - decoder, decoder)

    return work


def transformers(subject: SpeechSubject, args: Namespace, weights: str) -> Transcribe:
    """Open transformers' ``generate``, not compiled."""
    model = HuggingFace(subject, weights, Setup(args.device, args.threads))
    return partial(model.transcribe_batch, beam_size=1)


main = partial(run, measure, ["whisper", "data_dir", "num_utterances"])

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
