"""Shape files of ESPnet's collect-stats stage."""

from pathlib import Path


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
    result.write_text("".join(f"{line},{tokens}\n" for line in lines if line), encoding="utf-8")
    return result
