"""ESPnet's st_inference (speech translation) with this package's beam search.

Options: ESPnet's and ``SearchOptions``. Outputs and log lines are ESPnet's; a bad utterance does
not stop the others, and an interrupted job resumes.
"""

from espnet2.bin.st_inference import get_parser as get_espnet_parser
from espnet2.tasks.st import STTask
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.search_options import SearchOptions
from espnet_medusa.inference import decoding_command
from espnet_medusa.inference.reader import UtteranceReader
from espnet_medusa.inference.st import ESPNET_OPTIONS, STSpeech2Text
from espnet_medusa.inference.utterance_decoder import UtteranceDecoder


def get_parser():
    parser = get_espnet_parser()
    decoding_command.add_search(parser, SearchOptions())
    return parser


def main(cmd: list[str] | None = None) -> None:
    decoding_command.run(get_parser(), inference, cmd)


def inference(options: dict) -> int:
    job = decoding_command.read_job(options)
    if options["model_tag"] is not None:
        raise InputError(f"model_tag: {options['model_tag']}; give --st_model_file instead")
    chosen = decoding_command.choose_options(options, ESPNET_OPTIONS, SearchOptions)
    set_all_random_seed(options["seed"])
    speech2text = STSpeech2Text(**chosen)
    if speech2text.st_model.use_multidecoder:
        raise InputError(
            "use_multidecoder: true; such models need espnet-medusa-python "
            "--no-redirect, which writes their transcripts"
        )
    preprocess = STTask.build_preprocess_fn(speech2text.st_train_args, False)
    reader = UtteranceReader(speech2text.audio, preprocess, options["allow_pipes"])
    decoder = UtteranceDecoder(speech2text, reader, options["batch_size"])
    return decoding_command.decode(decoder, job, options)


if __name__ == "__main__":
    main()
