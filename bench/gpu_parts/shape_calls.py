"""Measure time and memory of decoder calls of a Whisper's shape with random weights."""

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
from contestants.make_subjects import MEMORY_FRAMES, WHISPER_SHAPES, random_decoder
from decoder_calls import CachedCalls, Calls, CompiledCalls, TreeCalls, call_seconds
from figures import MILLI, quartiles

from espnet_medusa.bin.command_line import positive
from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.runtime.build import build_runtime
from gpu_parts.part import Part, forget_peak, open_part, part_parser, peak_bytes

OURS, NO_GRAPHS = "ours", "ours, kernel by kernel"
EAGER, COMPILED = "transformers", "transformers compiled"
CONTESTANTS = (OURS, EAGER, COMPILED, NO_GRAPHS)
COMPILE_MODE = {"cuda": "reduce-overhead", "cpu": None}  # "reduce-overhead" captures CUDA graphs
# (memory (U, S, D), nodes) to calls
Begin = Callable[[torch.Tensor, int], Calls]


def main(cmd: Sequence[str] | None = None) -> int:
    """Measure and return the exit status."""
    args = get_parser().parse_args(cmd)
    part = open_part(args, ["shape"])
    decoder = random_decoder(args.shape, heads="none").requires_grad_(False)
    for weights in args.weights:
        for contestant in args.contestants:
            sizes = batch_sizes(args, contestant, weights)
            measure(part, args, decoder, contestant, weights, sizes)
    return part.status


def get_parser() -> argparse.ArgumentParser:
    parser = part_parser(__doc__)
    parser.add_argument("--shape", choices=[*WHISPER_SHAPES], required=True)
    parser.add_argument("--weights", nargs="+", required=True)
    parser.add_argument("--nodes", nargs="+", type=positive, default=[1, 11])
    parser.add_argument("--batch_sizes", nargs="+", type=positive, default=[1])
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS)
    parser.add_argument("--repeats", type=positive, default=20)
    return parser


def batch_sizes(args: argparse.Namespace, contestant: str, weights: str) -> list[int]:
    """Return the batch sizes of a contestant: the compiled one has only the first."""
    if contestant != COMPILED:
        return args.batch_sizes
    return args.batch_sizes[:1] if weights == args.weights[0] else []


def measure(
    part: Part,
    args: argparse.Namespace,
    decoder: WhisperMedusaDecoder,
    contestant: str,
    weights: str,
    sizes: Sequence[int],
) -> None:
    """Measure all rows of a contestant with one type of weights."""
    opened: list[Begin] = []

    def row(utterances: int, nodes: int) -> dict:
        if not opened:  # a failure belongs to the row
            opened.append(BUILDERS[contestant](decoder, weights, args.device))
        return time_row(opened[0], decoder, utterances, nodes, args)

    for utterances in sizes:
        for nodes in args.nodes:
            key = {"contestant": contestant, "weights": weights}
            key |= {"batch_size": utterances, "nodes": nodes}
            peer = contestant in (EAGER, COMPILED)
            part.measure(key, partial(row, utterances, nodes), peer)


@torch.no_grad()
def time_row(
    begin: Begin,
    decoder: WhisperMedusaDecoder,
    utterances: int,
    nodes: int,
    args: argparse.Namespace,
) -> dict:
    """Return quartiles of a call's milliseconds, and the peak of GPU memory."""
    generator = torch.Generator().manual_seed(0)
    size = decoder.whisper.config.d_model
    memory = torch.randn(utterances, MEMORY_FRAMES, size, generator=generator).to(args.device)
    forget_peak(args.device)
    seconds = call_seconds(begin(memory, nodes), nodes, args.repeats, args.device)
    ms = quartiles([MILLI * one for one in seconds])
    return {"ms": ms, "peak_bytes": peak_bytes(args.device)}


def ours(
    decoder: WhisperMedusaDecoder, weights: str, device: str, with_graphs: bool = True
) -> Begin:
    """Build our runtime; the module then returns to the CPU."""
    runtime = build_runtime(decoder.to(device), weights, lasting=with_graphs)
    decoder.to("cpu")
    return lambda memory, nodes: TreeCalls(runtime, memory)


def transformers(decoder: WhisperMedusaDecoder, weights: str, device: str) -> Begin:
    """Copy transformers' decoder, which ours contains."""
    dtype = getattr(torch, weights)
    whisper = copy.deepcopy(decoder.whisper).to(device, dtype)
    return lambda memory, nodes: CachedCalls(whisper, memory.to(dtype))


def compiled(decoder: WhisperMedusaDecoder, weights: str, device: str) -> Begin:
    """Copy transformers' decoder and compile it."""
    dtype = getattr(torch, weights)
    whisper = copy.deepcopy(decoder.whisper).to(device, dtype)
    mode = COMPILE_MODE[device]
    return lambda memory, nodes: CompiledCalls(whisper, memory.to(dtype), nodes, mode)


BUILDERS = {
    OURS: ours,
    NO_GRAPHS: partial(ours, with_graphs=False),
    EAGER: transformers,
    COMPILED: compiled,
}


if __name__ == "__main__":
    sys.exit(main())
