"""Time and memory of Whisper's larger shapes, ours against CTranslate2 (faster-whisper's engine).

python bench/whisper_shapes.py --shapes small large-v3-turbo large-v3 --folder /var/tmp/shapes

Weights and audio are random, and each text has a fixed number of tokens, so only time and memory
can be compared. Weights are stored in float16, as published ones; each program computes in the
given precision. ours: the encoder computes the audio and one in eight frames of padding, greedy
search without drafts. CTranslate2: a window of 30 s, as faster-whisper pads. Programs take turns,
each run has a process of its own. Figures are medians of --rounds runs; "MB loaded" and "MB at
most": the process's memory (VmRSS, VmHWM), imports included. Of ours, imports take 868 MB with
torch's CUDA build; CTranslate2 does not load torch.
"""

import argparse
import json
import statistics
import subprocess
import sys
from itertools import product
from pathlib import Path

import torch
from machine import describe_machine, machine_name
from one_shape import CTRANSLATE2, OURS, PROGRAMS, SECONDS
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperForConditionalGeneration

from espnet_medusa.bin import convert
from espnet_medusa.data.command_line import positive, run_main
from espnet_medusa.recipes.report.markdown import markdown_table

# Encoder and decoder layers, hidden size, attention heads, mel bands, vocabulary.
SHAPES = {
    "base": (6, 6, 512, 8, 80, 51865), "small": (12, 12, 768, 12, 80, 51865),
    "large-v3-turbo": (32, 4, 1280, 20, 128, 51866), "large-v3": (32, 32, 1280, 20, 128, 51866),
}  # fmt: skip
BENCH = Path(__file__).resolve().parent
COLUMNS = [*(f"encoder, {seconds} s [ms]" for seconds in SECONDS)]
COLUMNS += ["ms per token", "MB loaded", "MB at most"]
RESULTS, ONE_SHAPE = BENCH / "results", str(BENCH / "one_shape.py")


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shapes", nargs="+", choices=[*SHAPES], default=["small", "large-v3-turbo", "large-v3"])
    add("--precisions", nargs="+", choices=["int8", "float32"], default=["int8"])
    add("--folder", type=Path, required=True, help="for the weights: up to 7 GB per shape")
    add("--tokens", type=positive, default=24, help="of each text")
    add("--rounds", type=positive, default=3)
    add("--threads", type=positive, default=2)
    add("--output", type=Path, help="folder; default: bench/results/MACHINE")
    return parser


def write_weights(shape: str, folder: Path) -> None:
    """Write a random Whisper in float16, as an experiment and for CTranslate2."""
    if (folder / CTRANSLATE2).is_dir():
        return
    encoder, decoder, width, heads, mels, vocabulary = SHAPES[shape]
    config = WhisperConfig(
        encoder_layers=encoder, decoder_layers=decoder, d_model=width, num_mel_bins=mels,
        vocab_size=vocabulary, encoder_attention_heads=heads, decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, dtype="float16",
    )  # fmt: skip
    with torch.device("meta"):
        state = WhisperForConditionalGeneration(config).state_dict()
    state.pop("proj_out.weight")  # the embedding
    generator = torch.Generator().manual_seed(0)
    for name, weight in state.items():
        random = 0.03 * torch.randn(weight.shape, generator=generator)
        state[name] = (random + float("layer_norm.weight" in name)).half()
    source = folder / "source"
    config.save_pretrained(source)
    save_file(state, source / "model.safetensors", {"format": "pt"})
    del state
    convert.main([str(source), str(folder / OURS), "--heads", "none"])
    words = ["--to", "ctranslate2", "--dtype", "float16"]
    convert.main([str(source), str(folder / CTRANSLATE2), *words])


def measure(shape: str, args: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Return the runs of each program and precision with one shape; programs take turns."""
    write_weights(shape, args.folder / shape)
    ways = [*product(PROGRAMS, args.precisions)]
    runs: dict[str, list[list[float]]] = {" | ".join(way): [] for way in ways}
    for _, (program, precision) in product(range(args.rounds), ways):
        words = program, args.folder / shape, precision, args.tokens, args.threads
        command = [sys.executable, ONE_SHAPE, *map(str, words)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        runs[f"{program} | {precision}"].append(json.loads(done.stdout.splitlines()[-1]))
    return runs


def write_tables(shapes: dict[str, dict[str, list[list[float]]]]) -> str:
    """Return a section with a table for each shape."""
    sections = []
    for shape, runs in shapes.items():
        rows = []
        for way, measured in runs.items():
            medians = [statistics.median(column) for column in zip(*measured, strict=True)]
            rows.append([*way.split(" | "), *(f"{value:.0f}" for value in medians)])
        table = markdown_table(["program", "precision", *COLUMNS], rows, text_columns=2)
        sections.append(f"## {shape}\n\n{table}")
    return "\n".join(sections)


def work(args: argparse.Namespace) -> int:
    output = args.output or RESULTS / machine_name("cpu")
    shapes = {shape: measure(shape, args) for shape in args.shapes}
    tables = write_tables(shapes)
    print(tables)
    output.mkdir(parents=True, exist_ok=True)
    machine = describe_machine("cpu", args.threads)
    record = {"machine": machine, "columns": COLUMNS, "shapes": shapes}
    (output / "whisper_shapes.json").write_text(json.dumps(record, indent=1) + "\n")
    notes = "\n".join(__doc__.splitlines()[4:])
    about = f"{machine['processor']}, {args.threads} threads, {args.tokens} tokens"
    text = f"# Whisper's larger shapes\n\n{about}.\n\n{tables}\n{notes}\n"
    (output / "whisper_shapes.md").write_text(text)
    return 0


def main(cmd: list[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    run_main("whisper_shapes.py", lambda: work(args))


if __name__ == "__main__":
    main()
