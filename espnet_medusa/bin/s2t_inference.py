"""ESPnet's s2t_inference (OWSM) with this package's beam search, in batches.

Options: ESPnet's and ``DraftModelOptions``. Outputs and log lines are ESPnet's; a bad utterance
does not stop the others, and an interrupted job resumes. Additional files are ``journal.jsonl``,
``statistics.json`` and ``failed_utterances``.
"""

from espnet2.bin.s2t_inference import get_parser as get_espnet_parser
from espnet2.tasks.s2t import S2TTask
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from espnet2.utils.types import str_or_none

from espnet_medusa.inference import decoding_command
from espnet_medusa.inference.audio_batch import AudioLimits
from espnet_medusa.inference.decode_options import DraftModelOptions
from espnet_medusa.inference.reader import UtteranceReader
from espnet_medusa.inference.s2t import ESPNET_OPTIONS, S2TSpeech2Text, S2TUtteranceDecoder


def get_parser():
    parser = get_espnet_parser()
    decoding_command.add_search(parser, DraftModelOptions())
    languages = "Kaldi file with the languages of utterances, such as eng"
    parser.add_argument("--utt2lang", type=str_or_none, help=languages)
    decoding_command.add_draft_texts(parser)
    return parser


def main(cmd: list[str] | None = None) -> None:
    decoding_command.run(get_parser(), inference, cmd)


def inference(options: dict) -> int:
    job = decoding_command.read_job(options, previous_text=True)
    return decoding_command.decode(open_decoder(options), job, options)


def open_decoder(options: dict) -> S2TUtteranceDecoder:
    """Open the model; raise InputError if an option or the model is not usable."""
    for name in ("lang_sym", "task_sym"):  # a shell would redirect by < and >
        options[name] = f"<{options[name].strip('<>')}>"
    chosen = decoding_command.choose_options(options, ESPNET_OPTIONS, DraftModelOptions)
    set_all_random_seed(options["seed"])
    speech2text = S2TSpeech2Text.from_pretrained(options["model_tag"], **chosen)
    args = speech2text.s2t_train_args
    preprocess = S2TTask.build_preprocess_fn(args, False)
    # ESPnet's model pads and cuts audio itself.
    changes_audio = getattr(args, "speech_volume_normalize", None) is not None
    limits = AudioLimits(speech2text.preprocessor_conf["fs"])
    reader = UtteranceReader(limits, preprocess if changes_audio else None, options["allow_pipes"])
    return S2TUtteranceDecoder(speech2text, reader, options["batch_size"], preprocess=preprocess)


if __name__ == "__main__":
    main()
