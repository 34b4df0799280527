"""Time a decoder call of a Speech-LLaMA with projection heads, latent heads or only the base head.

A call evaluates the last token and K - 1 drafts, computes the logits of all of them, and lets the
heads draft after one of them, as greedy search does. Without heads, it evaluates
the last token only. Weights are random: time does not depend on them. Head types take turns;
figures are medians over rounds.

    python bench/speech_llama_heads.py --shapes mini paper --output_dir bench/results
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from machine import machine_name
from tqdm import tqdm

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.tree.token_tree import ROOT, chain_parents
from espnet_medusa.networks.llama_decoder import SpeechLlamaDecoder
from espnet_medusa.recipes.report.markdown import markdown_table

ENCODER_SIZE = 64
FRAMES = 250  # 10 s in frames of 40 ms
SHAPES = {  # vocabulary and sizes of the language model, as in the recipes
    "mini": (400, {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4,
                   "intermediate_size": 512}),
    "paper": (32000, {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                      "intermediate_size": 1792}),
}  # fmt: skip
HEADS = ("none", "projection", "latent")


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--shapes", nargs="+", choices=SHAPES, default=[*SHAPES])
    add("--tokens", type=int, nargs="+", default=[2, 3, 4, 5, 6], help="K: tokens per call")
    add("--precisions", nargs="+", default=["float32", "bfloat16", "int8"])
    add("--rounds", type=int, default=15)
    add("--threads", type=int, default=2)
    add("--device", default="cpu")
    add("--output_dir", type=Path, required=True)
    return parser


def make_call(decoder: SpeechLlamaDecoder, tokens: int, precision: str) -> Callable[[], None]:
    """Return a function that runs one iteration after ten tokens."""
    runtime, device = build_runtime(decoder, precision), decoder.projection.device
    proposer = runtime.proposer()
    encoder_out = torch.randn(1, FRAMES, ENCODER_SIZE, device=device)
    state = runtime.start(encoder_out, torch.tensor([FRAMES], device=device))
    runtime.extend(state, [[1] * 10], [chain_parents(10, ROOT, 0)])
    context = [[*range(10)]]

    def call() -> None:
        outputs = runtime.extend(state, [[2] * tokens], [chain_parents(tokens, 9, 10)])
        best = runtime.logits(outputs.hidden).max(dim=-1).indices
        if proposer is not None:
            states = proposer.advance(proposer.start_from(outputs.head_input[-1:]), best[-1:])
            proposer.logits(states)
        best.tolist()
        runtime.keep(state, context)

    return call


@torch.no_grad()
def measure(shape: str, args: argparse.Namespace) -> list[tuple[str, ...]]:
    """Return the rows of the table."""
    vocab_size, sizes = SHAPES[shape]
    rows = []
    for precision, tokens in itertools.product(args.precisions, args.tokens):
        calls, conf = {}, {"llama_conf": sizes, "heads_conf": {"num_heads": tokens - 1}}
        for heads in HEADS:
            torch.manual_seed(0)
            decoder = SpeechLlamaDecoder(vocab_size, ENCODER_SIZE, heads=heads, **conf)
            decoder.eval().to(args.device)
            calls[heads] = make_call(decoder, 1 if heads == "none" else tokens, precision)
        seconds = {heads: [] for heads in HEADS}
        for turn in tqdm(range(args.rounds + 2), desc=f"{shape}, {precision}, K = {tokens}"):
            for heads, call in calls.items():
                started = time.perf_counter()
                call()
                if turn >= 2:  # warm-up
                    seconds[heads].append(time.perf_counter() - started)
        none, projection, latent = (1e3 * statistics.median(seconds[heads]) for heads in HEADS)
        figures = (none, projection, latent, latent / projection)
        rows.append((shape, precision, str(tokens), *(f"{figure:.2f}" for figure in figures)))
    return rows


def main(cmd: list[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    torch.set_num_threads(args.threads)
    header = ("shape", "precision", "K", "one head", "projection", "latent", "latent / projection")
    rows = [row for shape in args.shapes for row in measure(shape, args)]
    folder = args.output_dir / machine_name(torch.device(args.device).type)
    folder.mkdir(parents=True, exist_ok=True)
    text = f"ms per decoder call, {args.threads} threads, median of {args.rounds} rounds\n\n"
    path = folder / "speech_llama_heads.md"
    path.write_text(text + markdown_table(header, rows), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
