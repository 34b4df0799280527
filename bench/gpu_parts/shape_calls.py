"""Measure time and memory of decoder calls of a Whisper's shape with random weights."""

import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial

import torch
from contestants.make_subjects import MEMORY_FRAMES, random_decoder
from decoder_calls import CachedCalls, CompiledCalls, TreeCalls, call_seconds, transformers_decoder
from figures import MILLI, quartiles

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder
from gpu_parts.part import (
    COMPILED,
    NO_GRAPHS,
    OURS,
    TRANSFORMERS,
    Part,
    Row,
    forget_peak,
    peak_bytes,
    run,
)

COMPILE_MODE = {"cuda": "reduce-overhead", "cpu": None}  # "reduce-overhead" records CUDA graphs
REPEATS = 20
# (memory (U, S, D), nodes) to calls
Begin = Callable[[torch.Tensor, int], TreeCalls | CachedCalls]


def measure(part: Part, args: Namespace) -> None:
    """Measure all rows; the compiled contestant has one type of weights and one batch size."""
    decoder = random_decoder(args.shape).requires_grad_(False)
    for weights in args.weights:
        for contestant in args.contestants:
            opened: list[Begin] = []
            compiles = contestant == COMPILED
            sizes = args.batch_sizes[:1] if compiles else args.batch_sizes
            for size in sizes if not compiles or weights == args.weights[0] else ():
                for nodes in args.nodes:
                    key = {"contestant": contestant, "weights": weights}
                    row = partial(time_row, opened, decoder, key, size, nodes, args.device)
                    key = key | {"batch_size": size, "nodes": nodes}
                    part.measure(key, row, peer=contestant in (TRANSFORMERS, COMPILED))


@torch.no_grad()
def time_row(
    opened: list[Begin],
    decoder: WhisperMedusaDecoder,
    key: Row,
    utterances: int,
    nodes: int,
    device: str,
) -> Row:
    """Return quartiles of a call's milliseconds, and the peak of GPU memory.

    Args:
        opened: The contestant of ``key``; it is opened for the first row, to which a failure
            belongs.
    """
    if not opened:
        opened.append(BUILDERS[key["contestant"]](decoder, key["weights"], device))
    generator = torch.Generator().manual_seed(0)
    size = decoder.whisper.config.d_model
    encoder_out = torch.randn(utterances, MEMORY_FRAMES, size, generator=generator).to(device)
    forget_peak(device)
    seconds = call_seconds(opened[0](encoder_out, nodes), nodes, REPEATS, device)
    ms = quartiles([MILLI * one for one in seconds])
    return {"ms": ms, "peak_bytes": peak_bytes(device)}


def ours(
    decoder: WhisperMedusaDecoder, weights: str, device: str, with_graphs: bool = True
) -> Begin:
    """Build our runtime; the module then returns to the CPU."""
    runtime = build_runtime(decoder.to(device), weights, with_graphs=with_graphs)
    decoder.to("cpu")
    return lambda encoder_out, nodes: TreeCalls(runtime, encoder_out)


def transformers(
    decoder: WhisperMedusaDecoder, weights: str, device: str, compiled: bool = False
) -> Begin:
    """Build transformers' decoder with these weights; ``compiled``: each call is compiled."""
    dtype, mode = getattr(torch, weights), COMPILE_MODE[device]
    whisper = transformers_decoder(decoder).to(device, dtype)
    if compiled:
        return lambda encoder_out, nodes: CompiledCalls(whisper, encoder_out.to(dtype), nodes, mode)
    return lambda encoder_out, nodes: CachedCalls(whisper, encoder_out.to(dtype))


BUILDERS = {
    OURS: ours,
    NO_GRAPHS: partial(ours, with_graphs=False),
    TRANSFORMERS: transformers,
    COMPILED: partial(transformers, compiled=True),
}


main = partial(run, measure, ["shape"])

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
