"""Measure a real Whisper from audio to text, in batches: times, word errors and memory."""

import importlib
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np
from contestants.base import FASTER_WHISPER, Result, Setup, Timed
from contestants.make_subjects import write_formats
from contestants.subjects import SpeechSubject
from contestants.ways import (
    AUTO,
    BASELINE,
    BEAM5,
    BEAM_SIZES,
    CTC,
    CTC_HEADS,
    FLOAT32,
    GREEDY,
    HEADS,
    Way,
)
from figures import MILLI, word_errors
from inputs import Utterance, enter_experiment, enter_recipe, read_utterances

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.runtime.process import keep_freed_memory
from espnet_medusa.decoding.search.search_options import FIXED
from espnet_medusa.inference.batches import join_batches, make_batches
from espnet_medusa.inference.convert.experiment import CONFIG, read_experiment
from espnet_medusa.inference.convert.write_whisper import write_hugging_face
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.recipes.scoring.sclite import Counts
from espnet_medusa.recipes.tuning.available import available
from espnet_medusa.recipes.tuning.tuned_model import TunedASR
from gpu_parts.part import (
    ASSISTED,
    COMPILED,
    CTRANSLATE2,
    OURS,
    TRANSFORMERS,
    Part,
    Row,
    forget_peak,
    free_memory,
    peak_bytes,
    run,
)

# Decode options of our rows. Ways without drafts and the wanted ones are measured.
OUR_WAYS = {
    BASELINE: {"draft_depth": 0},
    HEADS: {"drafter": HEADS, "lookahead": FIXED},
    CTC: {"drafter": CTC, "lookahead": FIXED},
    CTC_HEADS: {"drafter": CTC_HEADS, "lookahead": FIXED},
    AUTO: {"lookahead": AUTO},
    # The search of ``espnet-medusa-transcribe``, whose rule for the end is openai-whisper's.
    BEAM5: {"search": "beam", "beam_size": BEAM_SIZES[BEAM5], "patience": 1.0, "draft_depth": 0},
}
PEERS = {  # module and class of other programs
    TRANSFORMERS: "hugging_face.HuggingFace",
    COMPILED: "hugging_face.Compiled",
    ASSISTED: "hugging_face.SpeechAssisted",
    CTRANSLATE2: "faster_whisper.CTranslate2Speech",
    FASTER_WHISPER: "faster_whisper.FasterWhisper",
}
ALONE = (COMPILED, ASSISTED, FASTER_WHISPER)  # only one utterance at a time
OWN_MEMORY = (CTRANSLATE2, FASTER_WHISPER)  # on the GPU, not torch's
WARM_UP_UTTERANCES = 16  # enough for calls of all usual sizes


@dataclass(frozen=True)
class Program:
    # U utterances (samples,), and how many of them are decoded together, to texts.
    transcribe: Callable[[Sequence[np.ndarray], int], Timed]
    batches: Callable[[int], int] = lambda batch_size: 1  # per call


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
    wanted = {BASELINE, BEAM5, *({AUTO} & {*args.drafters})}
    wanted |= {one.kind for one in found.drafters.values()}
    ways = [name for name in OUR_WAYS if name in wanted]
    language = model.whisper.language or "en"  # English models have no language prompt
    del model, found
    free_memory()
    with tempfile.TemporaryDirectory() as folder:
        subject = SpeechSubject(Path(folder), "", [], "", "", language)
        write_formats(read_experiment(exp_dir, find_weights(exp_dir, "whisper")), subject)
        if args.assistant is not None:
            subject.draft.mkdir()
            assistant = Path(args.assistant)
            checkpoint = read_experiment(assistant, find_weights(assistant, "assistant"))
            write_hugging_face(checkpoint, subject.draft)
        elif ASSISTED in args.contestants:
            part.results.left_out[ASSISTED] = "no smaller Whisper; give --assistant"
        for contestant, weights, way in list_rows(args, ways):
            begin = partial(peer, subject, args, contestant, weights, way)
            if contestant == OURS:
                begin = partial(ours, exp_dir, args.device, weights, way)
            measure_batches(part, args, speech, (contestant, weights, way), begin)


def list_rows(args: Namespace, ways: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return contestant, weights and way of all rows; ``ways`` are ours.

    The first one is the reference, float32. The others have the first type of weights first. Of
    other programs, only transformers has the other types, and only CTranslate2 has a beam.
    """
    programs = [name for name in args.contestants if name != OURS]
    if args.assistant is None:
        programs = [name for name in programs if name != ASSISTED]
    rows = [(OURS, FLOAT32, BASELINE)] if FLOAT32 in args.weights else []
    for weights in args.weights:
        rows += [(OURS, weights, way) for way in ways]
        first = weights == args.weights[0]
        rows += [(name, weights, BASELINE) for name in programs if first or name == TRANSFORMERS]
        rows += [(CTRANSLATE2, weights, BEAM5)] if first else []
    return [row for row in dict.fromkeys(rows) if row[0] in args.contestants]


def measure_batches(
    part: Part,
    args: Namespace,
    utterances: Sequence[Utterance],
    who: tuple[str, str, str],
    begin: Callable[[], Program],
) -> None:
    """Measure all batch sizes of a contestant with its weights and way."""
    contestant, opened = who[0], []

    def row(batch_size: int) -> Row:
        if not opened:  # here, because a failure to open belongs to this row
            opened.append(begin())
        texts, figures = transcribe(opened[0], utterances, batch_size, args.device)
        if contestant in OWN_MEMORY:
            figures["peak_bytes"] = None
        reference = part.find({"reference": True})
        if reference is None and contestant == OURS:
            figures |= {"reference": True, "texts": texts}
        elif reference is not None:
            same = map(str.__eq__, reference["texts"], texts)
            figures["same_text"] = f"{sum(same)}/{len(texts)}"
        return figures

    names = ("contestant", "weights", "drafts")
    for batch_size in args.batch_sizes:
        if batch_size == 1 or contestant not in ALONE:
            key = dict(zip(names, who, strict=True)) | {"batch_size": batch_size}
            part.measure(key, partial(row, batch_size), peer=contestant != OURS)


def transcribe(
    program: Program, utterances: Sequence[Utterance], batch_size: int, device: str
) -> tuple[list[str], Row]:
    """Transcribe N utterances, similar lengths together; return texts and figures.

    Milliseconds are per utterance, medians over full batches; our program gets several at once.
    """
    batches = make_batches([len(one.speech) for one in utterances], batch_size)
    joined = [*join_batches(batches, program.batches(batch_size))]
    batches = [batch for batch, _ in joined]
    given = [([utterances[index].speech for index in batch], size) for batch, size in joined]
    forget_peak(device)
    for call in given[: -(-WARM_UP_UTTERANCES // len(batches[0]))]:
        program.transcribe(*call)
    timed = [program.transcribe(*call) for call in given]
    results: dict[int, Result] = {}
    for batch, one in zip(batches, timed, strict=True):
        results |= zip(batch, one.results, strict=True)
    texts = [results[index].text.strip() for index in range(len(utterances))]
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
    """Open our search, greedy by default."""
    alone = {"search": "greedy", "ctc_weight": 0.0, "lm_weight": 0.0, "device": device}
    weights = find_weights(exp_dir, "whisper")
    model = Speech2Text(exp_dir / CONFIG, weights, **alone | options)
    if model.whisper is None:
        raise InputError(f"{exp_dir}: no Whisper; convert one with espnet-medusa-convert")
    return model


def ours(exp_dir: Path, device: str, weights: str, way: str) -> Program:
    """Open our search, with encoder and decoder in one precision."""
    numbers = {"decoder_precision": weights, "encoder_precision": weights}
    model = open_whisper(exp_dir, device, **OUR_WAYS[way], **numbers)
    model.release_weights()

    def work(speeches: Sequence[np.ndarray], together: int) -> Timed:
        decodings = model.decode(speeches, together=together)
        results = [
            Result((one.results[0][0] or "") if one.results else "", counts=vars(one.statistics))
            for one in decodings
        ]
        decoder = sum(one.statistics.decoder_seconds for one in decodings)
        total = sum(one.statistics.total_seconds for one in decodings)
        return Timed(results, total - decoder, decoder)

    return Program(work, model.model.batches_per_call)


def peer(
    subject: SpeechSubject, args: Namespace, contestant: str, weights: str, way: str
) -> Program:
    """Open another program."""
    module, name = PEERS[contestant].split(".")
    kind = getattr(importlib.import_module(f"contestants.{module}"), name)
    model = kind(subject, weights, Setup(args.device, args.threads))
    if contestant in ALONE:
        alone = Way(contestant, weights, GREEDY)
        return Program(lambda speeches, _: model.transcribe(alone, *speeches))
    in_batches = partial(model.transcribe_batch, beam_size=BEAM_SIZES.get(way, 1))
    return Program(lambda speeches, _: in_batches(speeches))


main = partial(run, measure, ["whisper", "assistant", "data_dir", "num_utterances"])

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
