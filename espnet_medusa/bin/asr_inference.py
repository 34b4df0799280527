"""ESPnet's asr_inference with this package's searches; one bad utterance does not stop the others.

Options: ``inference.decoding_command``. Outputs and log lines are ESPnet's. Additional files are
``journal.jsonl``, ``statistics.json``, ``failed_utterances`` and, for audio longer than the model's
window, ``segments``.
"""

from espnet_medusa.inference.decoding_command import decode, get_parser, open_decoder, read_job, run


def main(cmd: list[str] | None = None) -> None:
    run(get_parser(), inference, cmd)


def inference(options: dict) -> int:
    """Decode one job; return the number of failed utterances, or raise InputError."""
    job = read_job(options)
    return decode(open_decoder(options), job, options)


if __name__ == "__main__":
    main()
