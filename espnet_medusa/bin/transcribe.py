"""Transcribe audio files.

    espnet-medusa-transcribe talk1.wav --model openai/whisper-base
    espnet-medusa-transcribe talks 'more/*.mp3' --model exp/base --language en --output_dir out

AUDIO is files, folders (searched recursively) and patterns, in any format that libsndfile or
FFmpeg reads. The text of each file is printed, and written to --output_dir and to the table `text`
there. Audio longer than the model's window is decoded window by window, as openai-whisper does,
or by chunks of speech (--vad_filter), with timestamps. Shorter audio gets timestamps if
--output_format needs them. A text that repeats itself is decoded again. Files that cannot be read
are listed at the end, with exit status 3. The same command resumes after an interruption. Defaults,
also of options that --config lacks: int8 if our CPU kernels run, --best_of 5, --fallback_on
repetition, --skip_silence true. For a Whisper, --language detect.
"""

import argparse
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from espnet_medusa.data.audio.reading import ON_BAD_AUDIO, TRANSCRIBING, AudioReading
from espnet_medusa.data.command_line import (
    SOME_FAILED,
    add_fields,
    make_main,
    or_none,
    positive,
    str2bool,
)
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import pick_options, read_yaml
from espnet_medusa.inference import decoding_command
from espnet_medusa.inference.decode_options import WITHOUT_DRAFTS, DecodeOptions
from espnet_medusa.inference.draft_text_files import read_draft_texts
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.whisper_windows import why_not_long_form
from espnet_medusa.transcription.defaults import WINDOWS, describe, with_defaults
from espnet_medusa.transcription.formats import CTM, FORMATS, OPENAI, UNTIMED, Transcript
from espnet_medusa.transcription.open_model import find_model
from espnet_medusa.transcription.pages import BASELINE, HTML, warm_up, write_pages
from espnet_medusa.transcription.recordings import Recording, find_recordings
from espnet_medusa.transcription.subtitles import AS_SEGMENTS, SubtitleOptions
from espnet_medusa.transcription.transcribe import (
    OutputFolder,
    check_used,
    choose_device,
    make_decoder,
    transcribe_into,
)

ALL = "all"
# Options of ESPnet, and of earlier results, on this command line.
OTHERS = ("beam_size", "batch_size", "draft_text_from")
# The options that most users set, in --help; the others are in --help_all.
FIRST = (
    "audio", "model", "output_dir", "output_format", "language", "task", "beam_size",
    "word_timestamps", "initial_prompt", "device", "overwrite",
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    add, none = parser.add_argument, argparse.SUPPRESS
    add("audio", nargs="+", help="files, folders, patterns")
    model = (
        "folder that espnet-medusa-convert or training made; or a Whisper: hub name, folder, or "
        ".pt file, which is converted once, into ~/.cache/espnet_medusa"
    )
    add("--model", required=True, help=model)
    add("--model_file", help="weights of the experiment; none: those in its folder")
    add("--output_dir", type=Path, default=Path("transcripts"), help="folder to write")
    formats = (
        f"all: {' '.join(OPENAI)}; every format but txt has timestamps; html: a page that replays "
        "the decoding"
    )
    add("--output_format", choices=[*FORMATS, HTML, ALL], default="txt", help=formats)
    shown = "html: also decode without drafts, to show both decodings"
    add("--html_baseline", type=str2bool, default=True, help=shown)
    embedded = "html: include the audio in the page, instead of a link to the file"
    add("--embed_audio", type=str2bool, default=False, help=embedded)
    add("--overwrite", action="store_true", help="also decode files that have a result")
    together = "files (--vad_filter: chunks) per batch; default: 8 (html: 1)"
    add("--batch_size", type=positive, default=none, help=together)
    add("--device", choices=["cpu", "cuda"], help="none: cuda if there is a GPU")
    add("--threads", type=positive, help="CPU threads; none: torch's default")
    add("--config", help="decode config: YAML of these options and of ESPnet's")
    greedy = "1 or none: greedy search; default: 5"
    add("--beam_size", type=or_none(positive), default=none, help=greedy)
    add_fields(parser, DecodeOptions(), default=none)
    decoding_command.add_draft_texts(parser, default=none)
    decoding_command.add_long_form_options(parser, default=none)
    add_fields(parser, TRANSCRIBING, {"on_bad_audio": {"choices": ON_BAD_AUDIO}})
    add_fields(parser, AS_SEGMENTS)


def work(args: argparse.Namespace) -> int:
    """Transcribe; return the exit status, or raise InputError if nothing can be transcribed."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    recordings = find_recordings(args.audio)
    options = decode_options(args)
    if args.output_format == HTML:
        # One recording at a time: recordings of a batch would share its time evenly.
        options |= {"trace": True, "batch_size": getattr(args, "batch_size", 1)}
    texts, source = {}, options["draft_text_from"]
    if source is not None:  # before the folder is opened, as it may be the same
        names = {str(one.path): [one.name, one.id] for one in recordings}
        texts = read_draft_texts(source, names)
    long_form = decoding_command.read_long_form_options(options)
    reading, subtitles = pick_options(AudioReading, args), pick_options(SubtitleOptions, args)
    subtitles.check_usable(long_form.word_timestamps)
    if subtitles.unused is not None:
        logging.warning(subtitles.unused)
    started = time.perf_counter()
    speech2text = load(options)
    if texts:
        speech2text.check_draft_texts()
    reason = why_not_long_form(speech2text.model)
    formats, timestamps = choose_formats(args.output_format, options, reason)
    if timestamps and long_form.without_timestamps is None:
        long_form = replace(long_form, without_timestamps=False)
    if HTML in formats and reason is None:
        long_form = replace(long_form, word_timestamps=True)
    check_used(speech2text, long_form, vars(args), WINDOWS)
    decoder = make_decoder(speech2text, options["batch_size"], long_form, reading)
    if HTML in formats:
        warm_up(speech2text, long_form)
    loaded = time.perf_counter()
    print(f"{describe(Path(args.model).name, options)}; --help for more", file=sys.stderr)
    # After all checks: opening the folder discards the results of other options.
    folder = open_folder(args, options, long_form, args.output_dir, formats, subtitles)
    transcripts = transcribe_into(folder, decoder, recordings, draft_texts=texts)
    folder.write_tables(transcripts)
    if HTML in formats:
        baselines = []
        drafted = any(transcript.statistics.drafted for transcript in transcripts)
        if drafted and args.html_baseline:
            del decoder, speech2text
            baselines = decode_baseline(args, options, long_form, recordings)
        pages = baselines, options, args.embed_audio, reading
        transcripts = write_pages(args.output_dir, transcripts, *pages)
    failures = [transcript.error for transcript in transcripts if transcript.error is not None]
    audio_s = sum(transcript.statistics.audio_seconds for transcript in transcripts)
    done = f"{len(transcripts) - len(failures)} of {len(transcripts)} files"
    decoding_s, opening_s = time.perf_counter() - loaded, loaded - started
    seconds = f"{decoding_s:.1f} s; the model was opened in {opening_s:.1f} s"
    print(f"{args.output_dir}: {done}, {audio_s:.1f} s of audio, in {seconds}", file=sys.stderr)
    for error in failures:
        print(f"failed: {error}", file=sys.stderr)
    return SOME_FAILED if failures else 0


def load(options: dict) -> Speech2Text:
    """Load the model; ESPnet's own search, which refuses batches, decodes them one by one."""
    return decoding_command.load(options | {"batch_size": 1}, mapped=True)


def open_folder(
    args: argparse.Namespace,
    options: dict,
    long_form: LongFormOptions,
    path: Path,
    formats: Sequence[str] = (),
    subtitles: SubtitleOptions = AS_SEGMENTS,
) -> OutputFolder:
    """Open a folder of results; those of other options are discarded."""
    made_with = decoding_command.made_with(options) | {"long_form": asdict(long_form)}
    made_with["reading"] = asdict(pick_options(AudioReading, args))
    return OutputFolder(path, formats, made_with, args.overwrite, subtitles)


def decode_baseline(
    args: argparse.Namespace,
    options: dict,
    long_form: LongFormOptions,
    recordings: Sequence[Recording],
) -> list[Transcript]:
    """Decode again without drafts, into a folder of its own."""
    options = options | WITHOUT_DRAFTS
    speech2text = load(options)
    reading = pick_options(AudioReading, args)
    decoder = make_decoder(speech2text, options["batch_size"], long_form, reading)
    warm_up(speech2text, long_form)
    folder = open_folder(args, options, long_form, args.output_dir / BASELINE)
    return transcribe_into(folder, decoder, recordings, "without drafts", quiet=True)


def choose_formats(
    output_format: str, options: Mapping[str, Any], reason: str | None
) -> tuple[list[str], bool]:
    """Choose the formats to write, and whether they need times of all audio.

    ``reason``: why the model writes no timestamps, or None. Raise InputError for unusable formats.
    """
    formats, without = [output_format], options["without_timestamps"]
    if output_format == ALL:
        formats = [*(OPENAI if reason is None else UNTIMED)]
    need_times = options["word_timestamps"] or not {*formats} <= {*UNTIMED, HTML}
    if output_format == CTM and not options["word_timestamps"]:
        raise InputError("output_format: ctm; allowed with word_timestamps: true: it lists words")
    if options["word_timestamps"] and reason is not None:
        raise InputError(f"word_timestamps: true; {reason}; allowed here: false")
    if need_times and reason is not None:
        allowed = f"allowed here: {', '.join((*UNTIMED, HTML, ALL))}"
        raise InputError(f"output_format: {output_format}; {reason}; {allowed}")
    if reason is None and not without:
        need_times = formats != ["txt"] or without is False
    return formats, need_times


def decode_options(args: argparse.Namespace) -> dict:
    """Return options for asr_inference: the command line's, else the config's, else defaults."""
    model_config, weights, language = find_model(args.model, args.model_file)
    command = ["--output_dir", str(args.output_dir)]
    command += ["--data_path_and_name_and_type", "none,speech,sound"]
    config = {}
    if args.config is not None:
        config = read_yaml(Path(args.config), "give a YAML file of options") or {}
        command += ["--config", args.config] if config else []
    options = vars(decoding_command.get_parser().parse_args(command))
    given = {name: options[name] for name in config}
    names = (*decoding_command.DECODE_OPTIONS, *decoding_command.LONG_FORM, *OTHERS)
    given |= {name: value for name, value in vars(args).items() if name in names}
    device = choose_device(args.device)
    options |= with_defaults(given, device)
    options["language"] = options["language"] or language
    files = {"asr_train_config": str(model_config), "asr_model_file": str(weights)}
    return options | files | {"ngpu": int(device == "cuda")}


main = make_main("transcribe", __doc__, add_options, work, FIRST)

if __name__ == "__main__":
    main()
