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

    espnet-medusa-transcribe --live --model openai/whisper-base

--live transcribes the microphone, - (a pipe of 16-bit PCM at 16 kHz, or of a container) or a file
at its own pace, by greedy search. A terminal shows the text, with tentative words dimmed;
otherwise each update is a JSON line. Ctrl-C ends the recording.
"""

import argparse
import logging
import math
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from espnet_medusa.data.audio.reading import ON_BAD_AUDIO, TRANSCRIBING, AudioReading
from espnet_medusa.data.audio.voice_activity import RATE_HZ
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
from espnet_medusa.inference.audio_batch import AudioLimits
from espnet_medusa.inference.decode_options import WITHOUT_DRAFTS, DecodeOptions
from espnet_medusa.inference.draft_text_files import read_draft_texts
from espnet_medusa.inference.live.live_options import LiveOptions
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.whisper_windows import why_not_long_form
from espnet_medusa.transcription.defaults import WINDOWS, describe, with_defaults
from espnet_medusa.transcription.formats import CTM, FORMATS, OPENAI, UNTIMED, Transcript
from espnet_medusa.transcription.live import (
    NAME,
    free_name,
    stop_at_interrupt,
    transcribe_stream,
    unfinished_path,
    write_live,
)
from espnet_medusa.transcription.live_display import Terminal, json_lines
from espnet_medusa.transcription.live_sources import paced, piped, recorded
from espnet_medusa.transcription.open_model import find_model
from espnet_medusa.transcription.pages import BASELINE, HTML, warm_up, write_pages
from espnet_medusa.transcription.recordings import AudioFileReader, Recording, find_recordings
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
    "word_timestamps", "initial_prompt", "device", "overwrite", "live",
)  # fmt: skip


LIVE_OPTIONS = tuple(field.name for field in fields(LiveOptions))
LIVE_DEFAULTS = {"beam_size": 1}
# Options of files that live transcription does not have, besides those that ``check_live`` refuses.
NOT_LIVE = (
    "batch_size", "without_timestamps", "fallback_on", "best_of", "language_detection_segments",
    "temperature_increment_on_fallback", "max_initial_timestamp", "vad_parameters",
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    add, none = parser.add_argument, argparse.SUPPRESS
    add("audio", nargs="*", help="files, folders, patterns; with --live: a file, - or nothing")
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
    together = "files (--vad_filter: chunks) per batch; default: 8, by memory on a GPU (html: 1)"
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
    add("--live", action="store_true", help="transcribe a microphone, a pipe or a file live")
    pace = "speed at which --live reads a file, in its own; 0: as fast as possible; default: 1"
    add("--pace", type=float, default=none, help=pace)
    add_fields(parser, LiveOptions(), default=none)


def work(args: argparse.Namespace) -> int:
    """Transcribe; return the exit status, or raise InputError if nothing can be transcribed."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    check_live_options(args)
    if args.live:
        return transcribe_live(args)
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
    options["batch_size"] = decoder.batch_size
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


def check_live_options(args: argparse.Namespace) -> None:
    """Raise InputError for options that --live needs or does not have."""
    given = vars(args)
    if not args.live:
        names = [name for name in ("pace", *LIVE_OPTIONS) if name in given]
        if names:
            raise InputError(f"{names[0]}: {given[names[0]]}; allowed with --live")
        return
    names = [name for name in NOT_LIVE if name in given]
    if names or args.output_format == HTML:
        name = "output_format" if not names else names[0]
        raise InputError(f"{name}: {given[name]}; not allowed with --live; leave it out")
    if len(args.audio) > 1:
        raise InputError(f"{' '.join(args.audio)}; allowed with --live: one file, - or nothing")
    if getattr(args, "pace", 1.0) < 0 or not math.isfinite(getattr(args, "pace", 1.0)):
        raise InputError(f"pace: {args.pace}; allowed: 0 or more")


def transcribe_live(args: argparse.Namespace) -> int:
    """Transcribe a stream; return the exit status, or raise InputError."""
    options = decode_options(args, LIVE_DEFAULTS)
    long_form = decoding_command.read_long_form_options(options)
    subtitles = pick_options(SubtitleOptions, args)
    subtitles.check_usable(long_form.word_timestamps)
    formats, _ = choose_formats(args.output_format, options, None)
    recording, audio = Recording(Path(NAME), free_name(args.output_dir)), None
    if args.audio and args.audio != ["-"]:
        [recording, *more] = find_recordings(args.audio)
        if more:
            raise InputError(f"{args.audio[0]}: several files; allowed with --live: one")
        reader = AudioFileReader(AudioLimits(RATE_HZ), reading=pick_options(AudioReading, args))
        audio = reader.read_samples(str(recording.path), None)
    speech2text = load(options)
    of_live = {name: vars(args)[name] for name in LIVE_OPTIONS if name in vars(args)}
    live = speech2text.live(**vars(long_form), **of_live)
    speech2text.release_weights(replace(long_form, word_timestamps=True))
    stopped = threading.Event()
    if audio is not None:
        pieces = paced(audio, getattr(args, "pace", 1.0), stopped)
    else:
        pieces = piped(sys.stdin.buffer, stopped) if args.audio else recorded(stopped)
    print(f"{describe(Path(args.model).name, options)}; Ctrl-C ends", file=sys.stderr)
    folder = OutputFolder(args.output_dir, formats, None, args.overwrite, subtitles)
    on_terminal = sys.stdout.isatty()
    show = json_lines(sys.stdout)
    if on_terminal:
        show = Terminal(sys.stdout, shutil.get_terminal_size().columns)
    with stop_at_interrupt(stopped):
        result = transcribe_stream(live, pieces, show, unfinished_path(folder, recording))
    if on_terminal:
        show.end()
    write_live(folder, recording, live, result, long_form.word_timestamps)
    counts, audio_s = live.statistics, live.audio.end_s
    print(
        f"{args.output_dir / recording.name}: {audio_s:.1f} s of audio, {result.updates} updates, "
        f"{counts.decoder_calls} decoder calls, {counts.total_seconds:.1f} s",
        file=sys.stderr,
    )
    if result.error is not None:
        print(f"failed: {result.error}", file=sys.stderr)
    return SOME_FAILED if result.error is not None else 0


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


def decode_options(args: argparse.Namespace, defaults: Mapping[str, Any] = {}) -> dict:
    """Return options for asr_inference: the command line's, else the config's, else defaults.

    ``defaults`` replace those of files.
    """
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
    options |= with_defaults({**defaults, **given}, device, weights)
    options["language"] = options["language"] or language
    files = {"asr_train_config": str(model_config), "asr_model_file": str(weights)}
    return options | files | {"ngpu": int(device == "cuda")}


main = make_main("transcribe", __doc__, add_options, work, FIRST)

if __name__ == "__main__":
    main()
