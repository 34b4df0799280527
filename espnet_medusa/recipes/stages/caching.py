"""Cache a frozen model's outputs over a set, for training heads, CTC or a decoder.

An interrupted command resumes. The file failed_utterances lists utterances that failed; the
exit status is then 3. The same command tries them again.
"""

import argparse
import hashlib
import logging
from pathlib import Path

from espnet_medusa.data.command_line import LOG_FORMAT, SOME_FAILED, add_fields, positive, str2bool
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.output_folder import file_state
from espnet_medusa.data.kaldi.table import read_table
from espnet_medusa.recipes.jobs import check_gpus
from espnet_medusa.recipes.stages import Command

SETTINGS_FILE = "settings.yaml"  # of cached states


def cache_memory(parser: argparse.ArgumentParser) -> Command:
    """Cache a frozen encoder's output for training a decoder; `-- OPTIONS`: those of asr_train.

    The encoder is built from the training configuration and its initial weights.
    """
    add = parser.add_argument
    add("--data_dir", type=Path, required=True, help="data directory of stage 4, with wav.scp")
    add("--output_dir", type=Path, required=True, help="folder to write")
    add("--batch_size", type=positive, default=8, help="utterances per batch")
    add("--ngpu", type=int, default=0, help="1: on the GPU")
    args = yield
    check_gpus(args.ngpu)
    from espnet_medusa.espnet.task import MedusaASRTask
    from espnet_medusa.espnet.training.cached_memory import SETTINGS, SETTINGS_FILE, write_memory
    from espnet_medusa.espnet.training.cached_shards import check_same_settings
    from espnet_medusa.inference.job import read_input

    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    options = MedusaASRTask.get_parser().parse_args(args.command)
    job = read_input([(str(args.data_dir / "wav.scp"), "speech", "sound")], None)
    settings = {name: getattr(options, name) for name in SETTINGS}
    initial = [Path(value.split(":")[0]) for value in options.init_param]
    settings["init_param_files"] = [file_state(path) for path in initial if path.is_file()]
    check_same_settings(args.output_dir / SETTINGS_FILE, settings)
    model = MedusaASRTask.build_initial_model(options)
    preprocess = MedusaASRTask.build_preprocess_fn(options, False)
    device, folder = "cuda" if args.ngpu else "cpu", args.output_dir
    failed = write_memory(model, options, device, preprocess, job, folder, args.batch_size)
    print(f"{args.output_dir}: {len(job.keys) - failed} of {len(job.keys)} utterances cached")
    return SOME_FAILED if failed else 0


def cache_states(parser: argparse.ArgumentParser) -> Command:
    """Decode a set with a Whisper once, and cache the texts and states that training needs.

    Labels are the decoded texts, or with --references true those of the set. Texts that are
    probably wrong are left out and listed in dropped_utterances.
    """
    from espnet_medusa.espnet.training.label_filter import FilterOptions

    add, path = parser.add_argument, Path
    add("--exp_dir", type=path, required=True, help="experiment of the Whisper: config.yaml")
    add("--model_file", default="model.pth", help="its weights, in that folder")
    add("--data_dir", type=path, required=True, help="wav.scp, utt2num_samples [utt2lang, text]")
    add("--output_dir", type=path, required=True, help="folder to write")
    add("--references", type=str2bool, default=False, help="labels are the texts in --data_dir")
    add("--states", type=str2bool, default=True, help="cache states; false: only texts")
    add("--memory", type=str2bool, default=True, help="cache encoder output (linear heads: unused)")
    add("--unpadded", type=str2bool, default=False, help="cache unpadded encoder outputs, for CTC")
    add("--labelled_dir", type=path, help="data directory to write, with the cached texts")
    add("--config", type=path, help="decode config of the search; default: greedy")
    add("--decoder_precision", help="decoder precision in the search, such as int8 (CPU)")
    add("--encoder_precision", default="float32", help="precision of the encoder")
    add("--encoder_padding", help="full or merged; default: as in decoding")
    add_fields(
        parser,
        FilterOptions(),
        drop_fraction="share of the texts to drop: those whose length fits the audio worst",
        max_compression_ratio="zlib ratio above which a decoded text is dropped as repetitive",
    )
    add("--batch_size", type=positive, default=8, help="utterances per batch")
    add("--ngpu", type=int, default=0, help="1: on the GPU")
    add(
        "--jobs", type=positive, default=1, help="processes that share the set; afterwards a call "
        "without --job joins their shards",
    )  # fmt: skip
    add("--job", type=positive, help="number of this process")
    return _cache_states((yield))


def _cache_states(args: argparse.Namespace) -> int:
    from espnet_medusa.data.files.output_folder import (
        check_output_dir,
        digest_of_inputs,
        staged_output,
    )
    from espnet_medusa.data.kaldi import dump_dir
    from espnet_medusa.espnet.training import cached_states as cached
    from espnet_medusa.espnet.training.cached_shards import EVERY, FAILED, check_same_settings
    from espnet_medusa.espnet.training.label_filter import FilterOptions
    from espnet_medusa.inference.reader import build_preprocess

    if args.labelled_dir is not None:
        check_output_dir(args.labelled_dir, [args.data_dir])
    if not args.states and args.references:
        raise InputError("--states false: requires --references false; otherwise nothing is cached")
    if args.job is not None and args.job > args.jobs:
        raise InputError(f"--job {args.job}: allowed with --jobs {args.jobs}: 1 to {args.jobs}")
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    job, speech2text = _load_decoding(args)
    samples = read_table(args.data_dir / "utt2num_samples")
    if unlisted := [key for key in job.keys if key not in samples]:
        message = f"{unlisted[0]}: not in utt2num_samples; run stages 3 and 4"
        raise InputError(f"{args.data_dir}: {message}")
    durations_s = {key: int(number) / speech2text.sample_rate_hz for key, number in samples.items()}
    utt2lang = args.data_dir / "utt2lang"
    languages = utt2lang if args.references and utt2lang.is_file() else None
    preprocess = build_preprocess(speech2text.asr_train_args, languages)
    references = None
    if args.references:  # token ids and text of each utterance
        texts = read_table(args.data_dir / "text")
        ids = {key: preprocess(key, {"text": text})["text"].tolist() for key, text in texts.items()}
        references = {key: (ids[key], text) for key, text in texts.items()}
    args.output_dir.mkdir(parents=True, exist_ok=True)
    archives = ()
    if args.states:
        chosen = {
            cached.STATES: True,
            cached.MEMORY: args.memory,
            cached.FRAMES: args.memory and speech2text.model.encoder.merged,
            cached.UNPADDED: args.unpadded,
        }
        # Shards are written again for another archive, with all that they had.
        had = {name for name in chosen if any(args.output_dir.glob(f"shard.*/{name}.scp"))}
        archives = tuple(name for name, is_cached in chosen.items() if is_cached or name in had)
        needed = cached.bytes_needed(speech2text, [*durations_s.values()], archives)
        cached.check_space(args.output_dir, needed)
    check_same_settings(args.output_dir / SETTINGS_FILE, _settings(args))
    unfit = FilterOptions(args.drop_fraction, args.max_compression_ratio)
    cache = cached.StateCache(speech2text, archives, references, preprocess, unfit)
    share = EVERY if args.job is None else slice(args.job - 1, None, args.jobs)
    cache.run(job, args.output_dir, args.batch_size, share)
    if args.job is not None:
        return 0
    left_out = cache.join(job, args.output_dir, durations_s)
    what = "states" if args.states else "texts"
    count = len(job.keys) - left_out.total()
    print(f"{args.output_dir}: {what} of {count} of {len(job.keys)} utterances")
    for reason, count in sorted(left_out.items()):
        print(f"  {reason}: {count}")
    if args.labelled_dir is not None:
        path = args.output_dir / "text"
        text, tables = read_table(path), dump_dir.read_dump_dir(args.data_dir)
        tables = {**dump_dir.select_ids(tables, text), "text": text}
        audio_format = dump_dir.read_audio_format(args.data_dir)
        with staged_output(args.labelled_dir, digest_of_inputs([path], [], {})) as staging:
            dump_dir.write_dump_dir(staging, tables, audio_format)
    return SOME_FAILED if left_out[FAILED] else 0


def _settings(args: argparse.Namespace) -> dict:
    """Return all that determines the cached labels and states, except the audio."""
    names = "references", "decoder_precision", "encoder_precision", "encoder_padding"
    tables = {"config": args.config, "utt2lang": args.data_dir / "utt2lang"}
    if args.references:
        tables["text"] = args.data_dir / "text"
    return {
        "weights": file_state(args.exp_dir / args.model_file),
        **{name: getattr(args, name) for name in names},
        **{
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in tables.items()
            if path is not None and path.is_file()
        },
    }


def _load_decoding(args: argparse.Namespace):
    """Return the utterances and the model with its search, as asr_inference loads them."""
    from espnet_medusa.inference import decoding_command
    from espnet_medusa.inference.job import read_input

    audio = f"{args.data_dir / 'wav.scp'},speech,sound"
    words = [
        "--output_dir", args.output_dir, "--ngpu", args.ngpu, "--batch_size", args.batch_size,
        "--data_path_and_name_and_type", audio,
        "--asr_train_config", args.exp_dir / "config.yaml",
        "--asr_model_file", args.exp_dir / args.model_file,
        "--encoder_precision", args.encoder_precision,
    ]  # fmt: skip
    words += ["--config", args.config] if args.config else ["--search", "greedy"]
    for name in ("decoder_precision", "encoder_padding"):
        if (value := getattr(args, name)) is not None:
            words += [f"--{name}", value]
    if (args.data_dir / "utt2lang").is_file():
        words += ["--utt2lang", args.data_dir / "utt2lang"]
    options = vars(decoding_command.get_parser().parse_args([*map(str, words)]))
    job = read_input(options["data_path_and_name_and_type"], None, options["utt2lang"])
    return job, decoding_command.load(options)
