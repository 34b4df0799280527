"""Run a frozen Whisper over audio once, and keep what heads and CTC train on.

    python -m espnet_medusa.stages.keep_states --exp_dir exp/asr_vanilla \\
        --data_dir dump/raw/train --output_dir dump/states/train

Labels are what the model itself writes, or with --references the set's text. An interrupted call
goes on where it was; `failed_utterances` lists what has no states, and the exit status is then 3.
"""

import argparse
import logging
from pathlib import Path

from espnet_medusa.bin.command_line import make_main, positive, str2bool

SOME_FAILED = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add = parser.add_argument
    add("--exp_dir", type=Path, required=True, help="experiment of the Whisper: config.yaml")
    add("--model_file", default="model.pth", help="its weights, in that folder")
    add("--data_dir", type=Path, required=True, help="wav.scp, utt2num_samples; text")
    add("--output_dir", type=Path, required=True, help="folder to write")
    add("--references", type=str2bool, default=False, help="labels are the set's own text")
    add("--memory", type=str2bool, default=True, help="keep encoder outputs: block heads and CTC")
    add("--decoder_precision", help="of the search that writes texts, such as int8 (CPU)")
    add("--batch_size", type=positive, default=8, help="utterances that run together")
    add("--ngpu", type=int, default=0, help="1: on the GPU")


def work(args: argparse.Namespace) -> int:
    """Keep states; returns the exit status.

    Raises:
        InputError: The experiment or the data are not usable, or the disk is too small.
    """
    from espnet_medusa.bin.asr_inference import build_preprocess
    from espnet_medusa.inference.job import read_input
    from espnet_medusa.inference.kept_states import StateKeeper, bytes_needed, check_space
    from espnet_medusa.inference.speech2text import Speech2Text
    from espnet_medusa.kaldi.dump_dir import sound_type
    from espnet_medusa.kaldi.table import read_table

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s"
    )
    job = read_input([(str(args.data_dir / "wav.scp"), "speech", sound_type(args.data_dir))], None)
    speech2text = Speech2Text(
        args.exp_dir / "config.yaml",
        args.exp_dir / args.model_file,
        device="cuda" if args.ngpu else "cpu",
        search="greedy",
        beam_size=1,
        ctc_weight=0.0,
        lm_weight=0.0,
        decoder_precision=args.decoder_precision,
        batch_size=args.batch_size,
    )
    preprocess = build_preprocess(speech2text.asr_train_args)
    references = None
    if args.references:
        texts = read_table(args.data_dir / "text")
        references = {
            key: (preprocess(key, {"text": text})["text"].tolist(), text)
            for key, text in texts.items()
        }
    samples = read_table(args.data_dir / "utt2num_samples").values()
    durations_s = [int(number) / speech2text.sample_rate_hz for number in samples]
    args.output_dir.mkdir(parents=True, exist_ok=True)
    check_space(args.output_dir, bytes_needed(speech2text, durations_s, args.memory))
    keeper = StateKeeper(speech2text, args.memory, references, preprocess)
    failed = keeper.run(job, args.output_dir, args.batch_size)
    print(f"{args.output_dir}: states of {len(job.keys) - failed} of {len(job.keys)} utterances")
    return SOME_FAILED if failed else 0


main = make_main("keep_states", __doc__, add_options, work)


if __name__ == "__main__":
    main()
