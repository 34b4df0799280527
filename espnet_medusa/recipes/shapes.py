"""Shape files of ESPnet's collect-stats stage, without labels that are too long for the decoder.

Training would fail at the first such label.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from espnet_medusa.data.errors import list_some
from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.kaldi.dump_dir import read_dump_dir
from espnet_medusa.data.kaldi.table import write_table

LONG_TEXTS = "long_texts"
EXAMPLES_SHOWN = 5


def write_shapes(data_dir: Path, folder: Path, count_labels: Callable[[str, str], int]) -> None:
    """Write `speech_shape` and `text_shape` as ESPnet does, from the directory of stage 4.

    ``count_labels(id, transcript)`` returns the number of the label's tokens.
    """
    tables = read_dump_dir(data_dir)
    if "text" not in tables:
        raise ValueError(f"{data_dir}/text: no transcripts to train on; run stages 3 and 4")
    labels = {key: str(count_labels(key, text)) for key, text in tables["text"].items()}
    write_table(folder / "speech_shape", tables["utt2num_samples"])
    write_table(folder / "text_shape", labels)


def add_vocabulary_size(shape_file: Path, token_list: Path, token_type: str) -> None:
    """Write `text_shape.<token_type>`: each text length, followed by the vocabulary size.

    ESPnet's numel batches multiply length by vocabulary size.
    """
    for path in (shape_file, token_list):
        if not path.is_file():
            raise ValueError(f"{path}: no such file; run stages 5 and 10 first")
    tokens = token_list.read_text(encoding="utf-8").count("\n")
    lines = shape_file.read_text(encoding="utf-8").split("\n")
    result = shape_file.with_name(f"{shape_file.name}.{token_type}")
    write_atomically(result, "".join(f"{line},{tokens}\n" for line in lines if line))


def longest_text(decoder: str | None, decoder_conf: Mapping | None) -> int | None:
    """Return the maximum number of tokens of a label, by the decoder of a training config.

    The start symbol takes one of the decoder's positions. None unless it is whisper_medusa.
    """
    if decoder != "whisper_medusa":
        return None
    from espnet_medusa.data.options import build_options
    from espnet_medusa.networks.whisper.pretrained import open_whisper
    from espnet_medusa.networks.whisper_decoder import DecoderOptions  # slow to import

    options = build_options(DecoderOptions, decoder_conf, "decoder_conf")
    if options.whisper_model is None:
        return options.max_target_positions - 1
    return open_whisper(options.whisper_model).config.max_target_positions - 1


def drop_long_texts(folder: Path, longest: int | None, text_name: str = "text") -> list[str]:
    """Remove utterances with too long labels from shape files, which define ESPnet's training set.

    Print the first ids, and return all. The file ``long_texts`` lists them with their numbers of
    tokens. Raise ValueError if all labels are too long.

    ``longest`` is the maximum number of tokens; None: no maximum. ``<text_name>_shape`` in
    ``folder`` is the shape file of the labels.
    """
    list_file = folder / LONG_TEXTS
    list_file.unlink(missing_ok=True)
    if longest is None:
        return []
    tables = {
        path: dict(line.split(" ", 1) for line in path.read_text("utf-8").split("\n") if line)
        for path in sorted(folder.glob("*_shape"))
    }
    shapes = tables[folder / f"{text_name}_shape"]
    lengths = {key: int(shape.split(",")[0]) for key, shape in shapes.items()}
    long = {key: length for key, length in lengths.items() if length > longest}
    if not long:
        return []
    if len(long) == len(lengths):
        message = f"every text is longer than the decoder's {longest} tokens; cut the utterances"
        raise ValueError(f"{folder}: {message}")
    for path, table in tables.items():
        lines = (f"{key} {shape}\n" for key, shape in table.items() if key not in long)
        write_atomically(path, "".join(lines))
    write_atomically(list_file, "".join(f"{key} {length}\n" for key, length in long.items()))
    shown = list_some((f"{key}: {length}" for key, length in long.items()), EXAMPLES_SHOWN)
    print(
        f"{folder}: left out {len(long)} whose text is longer than the decoder's {longest} tokens "
        f"({shown}); cut these utterances; {list_file} lists all"
    )
    return [*long]
