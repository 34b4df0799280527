"""Replace ESPnet's whisper_export_vocabulary (stage 5); also write Whisper's special tokens."""

from espnet2.bin.whisper_export_vocabulary import get_parser

from espnet_medusa.data.command_line import run_main
from espnet_medusa.data.files.token_list import write_token_list
from espnet_medusa.networks.whisper.espnet_text import build
from espnet_medusa.networks.whisper.text import list_tokens


def main(cmd: list[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)

    def work() -> None:
        added = None if args.add_token_file_name == "none" else args.add_token_file_name
        options = args.whisper_language, args.whisper_task, args.sot_asr, args.speaker_change_symbol
        tokenizer = build(args.whisper_model, *options, added).tokenizer
        write_token_list(args.output, list_tokens(tokenizer, len(tokenizer)))

    run_main("whisper_export_vocabulary", work)


if __name__ == "__main__":
    main()
