"""Replace ESPnet's hugging_face_export_vocabulary (stage 5); also write the added tokens."""

from espnet2.bin.hugging_face_export_vocabulary import get_parser

from espnet_medusa.data.command_line import run_main
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.token_list import write_token_list
from espnet_medusa.networks.whisper.text import list_tokens, load_safely


def main(cmd: list[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)

    def work() -> None:
        tokenizer = load_safely(args.model_name_or_path)
        tokens = [*list_tokens(tokenizer)]
        for entry in args.add_symbol:
            symbol, _, place = entry.rpartition(":")
            try:
                index = int(place)  # -1 is after the last token
            except ValueError:
                allowed = "allowed: SYMBOL:PLACE, as <blank>:0"
                raise InputError(f"--add_symbol {entry}; {allowed}") from None
            tokens.insert(len(tokens) + 1 + index if index < 0 else index, symbol.strip())
        write_token_list(args.output, tokens)

    run_main("hugging_face_export_vocabulary", work)


if __name__ == "__main__":
    main()
