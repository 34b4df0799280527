"""Small models and short decodings for tests of the Speech-LLaMA recipes."""

from pathlib import Path

from recipes import ROOT, copy_config

# Sizes of a small LLaMA.
LLAMA = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 16}  # fmt: skip


def copy_short_decodings(folder: Path, *ways: str) -> None:
    """Copy decode configs to a recipe, with a minimum length: its models are almost untrained."""
    for way in ways:
        source = ROOT / "conf" / "decode" / f"{way}.yaml"
        copy_config(source, folder / "conf" / "decode", minlenratio=-3.0, maxlenratio=-8.0)
