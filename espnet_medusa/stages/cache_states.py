"""Let a Whisper write the texts of a set once, and keep what heads and CTC train on.

    python -m espnet_medusa.stages.cache_states --exp_dir exp/asr_vanilla \\
        --data_dir dump/raw/train --output_dir dump/states_written/train

Labels are what the model itself writes, or with --references the set's text. Written texts that
cannot be right are left out (`dropped_utterances`). With --labelled_dir the set is written again
with these texts, for what trains on audio. An interrupted call goes on where it was;
`failed_utterances` lists what could not be read or decoded, and the exit status is then 3.
"""

import argparse
import logging
from pathlib import Path

from espnet_medusa.bin.command_line import add_fields, make_main, positive, str2bool
from espnet_medusa.errors import InputError
from espnet_medusa.training.label_filter import UnfitOptions

SOME_FAILED = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add = parser.add_argument
    add("--exp_dir", type=Path, required=True, help="experiment of the Whisper: config.yaml")
    add("--model_file", default="model.pth", help="its weights, in that folder")
    add("--data_dir", type=Path, required=True, help="wav.scp, utt2num_samples; utt2lang; text")
    add("--output_dir", type=Path, required=True, help="folder to write")
    add("--references", type=str2bool, default=False, help="labels are the set's own text")
    add("--states", type=str2bool, default=True, help="keep states; false: texts alone")
    add("--memory", type=str2bool, default=True, help="keep encoder outputs: block heads")
    add(
        "--unpadded",
        type=str2bool,
        default=False,
        help="keep them without the window's silence: CTC",
    )
    add("--labelled_dir", type=Path, help="data directory to write: the set with these texts")
    add("--config", type=Path, help="decode config of the search that writes texts; none: greedy")
    add("--decoder_precision", help="of that search, such as int8 (CPU)")
    add("--encoder_precision", default="float32", help="of the encoder, whose outputs are kept")
    add_fields(
        parser,
        UnfitOptions(),
        drop_fraction="of the written texts, those whose length least fits the audio",
        max_compression_ratio="written texts that zlib makes smaller than that repeat themselves",
    )
    add("--batch_size", type=positive, default=8, help="utterances that run together")
    add("--ngpu", type=int, default=0, help="1: on the GPU")
    add("--jobs", type=positive, default=1, help="processes; each does its shards alone, and a "
        "last call without --job joins them")  # fmt: skip
    add("--job", type=positive, help="which of them this is")


def work(args: argparse.Namespace) -> int:
    """Write texts and keep states; returns the exit status.

    Raises:
        InputError: The experiment or the data are not usable, or the disk is too small.
    """
    from espnet_medusa.bin import asr_inference
    from espnet_medusa.inference.job import build_preprocess, read_input
    from espnet_medusa.kaldi.table import read_table
    from espnet_medusa.training.cached_shards import EVERY, FAILED
    from espnet_medusa.training.cached_states import (
        MEMORY,
        STATES,
        UNPADDED,
        StateKeeper,
        bytes_needed,
        check_space,
    )

    if not args.states and args.references:
        raise InputError("--states false: nothing is left to do with --references true")
    if args.job is not None and args.job > args.jobs:
        raise InputError(f"--job {args.job}: allowed with --jobs {args.jobs}: 1 to {args.jobs}")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s"
    )
    options = decode_options(args)
    job = read_input(options["data_path_and_name_and_type"], None, options["utt2lang"])
    speech2text = asr_inference.load(options)
    preprocess = build_preprocess(speech2text.asr_train_args)
    references = None
    if args.references:
        texts = read_table(args.data_dir / "text")
        references = {
            key: (preprocess(key, {"text": text})["text"].tolist(), text)
            for key, text in texts.items()
        }
    samples = read_table(args.data_dir / "utt2num_samples")
    rate_hz = speech2text.sample_rate_hz
    durations_s = {key: int(number) / rate_hz for key, number in samples.items()}
    missing = next((key for key in job.keys if key not in durations_s), None)
    if missing is not None:
        raise InputError(f"{args.data_dir}: {missing}: not in utt2num_samples; run stages 3 and 4")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    asked = {STATES: True, MEMORY: args.memory, UNPADDED: args.unpadded}
    archives = tuple(name for name, is_asked in asked.items() if args.states and is_asked)
    if archives:
        needed = bytes_needed(speech2text, [*durations_s.values()], archives)
        check_space(args.output_dir, needed)
    unfit = UnfitOptions(args.drop_fraction, args.max_compression_ratio)
    keeper = StateKeeper(speech2text, archives, references, preprocess, unfit)
    share = EVERY if args.job is None else slice(args.job - 1, None, args.jobs)
    keeper.run(job, args.output_dir, args.batch_size, share)
    if args.job is not None:
        return 0
    left_out = keeper.join(job, args.output_dir, durations_s)
    kept = len(job.keys) - left_out.total()
    made = "states" if args.states else "texts"
    print(f"{args.output_dir}: {made} of {kept} of {len(job.keys)} utterances")
    for reason, count in sorted(left_out.items()):
        print(f"  {reason}: {count}")
    if args.labelled_dir is not None:
        write_labelled(args.data_dir, args.output_dir / "text", args.labelled_dir)
    return SOME_FAILED if left_out[FAILED] else 0


def decode_options(args: argparse.Namespace) -> dict:
    """The search that writes texts, as asr_inference's options."""
    from espnet_medusa.bin import asr_inference
    from espnet_medusa.kaldi.dump_dir import sound_type

    audio = f"{args.data_dir / 'wav.scp'},speech,{sound_type(args.data_dir)}"
    options = [
        "--output_dir", args.output_dir, "--ngpu", args.ngpu, "--batch_size", args.batch_size,
        "--data_path_and_name_and_type", audio,
        "--asr_train_config", args.exp_dir / "config.yaml",
        "--asr_model_file", args.exp_dir / args.model_file,
        "--encoder_precision", args.encoder_precision,
    ]  # fmt: skip
    options += ["--config", args.config] if args.config else ["--search", "greedy"]
    if args.decoder_precision is not None:
        options += ["--decoder_precision", args.decoder_precision]
    if (args.data_dir / "utt2lang").is_file():
        options += ["--utt2lang", args.data_dir / "utt2lang"]
    return vars(asr_inference.get_parser().parse_args([*map(str, options)]))


def write_labelled(data_dir: Path, text: Path, labelled_dir: Path) -> None:
    """Write a ``dump/raw`` directory anew, its texts those of a table and no others."""
    from espnet_medusa.files.output_folder import fingerprint, staged_output
    from espnet_medusa.kaldi.dump_dir import read_dump_dir
    from espnet_medusa.kaldi.table import read_table

    texts = read_table(text)
    with staged_output(labelled_dir, fingerprint([text], [], {})) as staging:
        read_dump_dir(data_dir).with_text(texts).write(staging)


main = make_main("cache_states", __doc__, add_options, work)


if __name__ == "__main__":
    main()
