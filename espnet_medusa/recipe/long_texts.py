"""Labels that have more tokens than the decoder has positions: left out before training.

Stage 4 knows neither tokens nor the decoder, so this belongs to stage 10. In training the first
such utterance would end it.
"""

from collections.abc import Mapping
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically

LONG_TEXTS = "long_texts"
N_SHOWN = 5


def longest_text(decoder: str | None, decoder_conf: Mapping | None) -> int | None:
    """Most tokens of a label that a decoder of a training configuration has positions for.

    Returns:
        One less than its positions: the start symbol takes one. None where it is not ours.

    Raises:
        InputError: A bad option, or a pretrained model that is not there.
    """
    if decoder != "whisper_medusa":
        return None
    from espnet_medusa.model.whisper_decoder import DecoderOptions  # slow to import
    from espnet_medusa.options import build_options
    from espnet_medusa.whisper.pretrained import open_whisper

    options = build_options(DecoderOptions, decoder_conf, "decoder_conf")
    if options.whisper_model is None:
        return options.max_target_positions - 1
    return open_whisper(options.whisper_model).config.max_target_positions - 1


def leave_out_long_texts(folder: Path, longest: int | None, text_name: str = "text") -> list[str]:
    """Take utterances with too long labels out of a set's shape files: ESPnet trains on these.

    Prints the first of them; the file ``long_texts`` lists all with their tokens.

    Args:
        folder: Holds the shape files of the training or the validation set.
        longest: Most tokens; None: nothing is too long.
        text_name: Whose shape file counts.

    Returns:
        The utterances that went.

    Raises:
        ValueError: Nothing is left.
    """
    listed = folder / LONG_TEXTS
    listed.unlink(missing_ok=True)
    tables = {path: _read_shapes(path) for path in sorted(folder.glob("*_shape"))}
    lengths = {
        key: int(shape.split(",")[0])
        for key, shape in tables[folder / f"{text_name}_shape"].items()
    }
    long = [key for key, length in lengths.items() if longest is not None and length > longest]
    if not long:
        return []
    if len(long) == len(lengths):
        raise ValueError(
            f"{folder}: every text is longer than the decoder's {longest} tokens; cut the "
            "utterances into shorter ones"
        )
    gone = set(long)
    for path, shapes in tables.items():
        _write(path, {key: shape for key, shape in shapes.items() if key not in gone})
    _write(listed, {key: lengths[key] for key in long})
    shown = ", ".join(f"{key}: {lengths[key]}" for key in long[:N_SHOWN])
    more = ", ..." if len(long) > N_SHOWN else ""
    print(
        f"{folder}: left out {len(long)} whose text is longer than the decoder's {longest} tokens "
        f"({shown}{more}); cut them into shorter ones; all of them: {listed}"
    )
    return long


def _read_shapes(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").split("\n")
    return dict(line.split(" ", 1) for line in lines if line)


def _write(path: Path, table: Mapping[str, object]) -> None:
    lines = [f"{key} {value}\n" for key, value in table.items()]
    write_atomically(path, "".join(lines))
