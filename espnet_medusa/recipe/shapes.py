"""Shape files of ESPnet's collect-stats stage."""

from collections.abc import Callable
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.kaldi.dump_dir import read_dump_dir
from espnet_medusa.kaldi.table import write_table


def add_vocabulary_size(shape_file: Path, token_list: Path, token_type: str) -> Path:
    """Write `text_shape.<token_type>`: each text length with the vocabulary size behind it.

    ESPnet's numel batches count text as length times vocabulary.

    Raises:
        ValueError: The shape file or the token list is missing.
    """
    for path in (shape_file, token_list):
        if not path.is_file():
            raise ValueError(f"{path}: no such file; run stages 5 and 10 first")
    tokens = token_list.read_text(encoding="utf-8").count("\n")
    lines = shape_file.read_text(encoding="utf-8").split("\n")
    result = shape_file.with_name(f"{shape_file.name}.{token_type}")
    write_atomically(result, "".join(f"{line},{tokens}\n" for line in lines if line))
    return result


def write_shapes(data_dir: Path, folder: Path, count_labels: Callable[[str, str], int]) -> None:
    """Write `speech_shape` and `text_shape` as ESPnet does, from what stage 4 left.

    Args:
        data_dir: Holds text and utt2num_samples.
        folder: To write to.
        count_labels: Utterance id and transcript to the number of its labels.

    Raises:
        ValueError: A table is missing or damaged.
    """
    tables = read_dump_dir(data_dir)
    if not tables.text:
        raise ValueError(f"{data_dir}/text: no transcripts to train on; run stages 3 and 4")
    folder.mkdir(parents=True, exist_ok=True)
    samples = {key: str(number) for key, number in tables.utt2num_samples.items()}
    labels = {key: str(count_labels(key, text)) for key, text in tables.text.items()}
    write_table(folder / "speech_shape", samples)
    write_table(folder / "text_shape", labels)
