"""Measure time and memory of decoder calls of a Whisper's shape with random weights."""

import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from contestants.make_subjects import MEMORY_FRAMES, end_symbol, hugging_face_model, random_decoder
from decoder_calls import (
    CONTEXT_TOKENS,
    CachedCalls,
    CompiledCalls,
    TreeCalls,
    call_seconds,
    transformers_decoder,
)
from figures import MILLI, quartiles

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder
from gpu_parts.part import (
    COMPILED,
    CTRANSLATE2,
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
# CTranslate2 has no call: the difference of two texts of these lengths, around the same context.
TEXTS, TEXT_REPEATS = (4, 2 * CONTEXT_TOKENS - 4), 5
# (encoder output (U, S, D), nodes) to the seconds of each call.
Timer = Callable[[torch.Tensor, int], list[float]]


def measure(part: Part, args: Namespace) -> None:
    """Measure all rows, those of the first type of weights first.

    Compiled calls and CTranslate2 have only this type. The former have one batch size, the latter
    one node.
    """
    decoder = random_decoder(args.shape).requires_grad_(False)
    for weights in args.weights:
        for contestant in args.contestants:
            opened: list[Timer] = []
            if contestant in (COMPILED, CTRANSLATE2) and weights != args.weights[0]:
                continue
            for size in args.batch_sizes[:1] if contestant == COMPILED else args.batch_sizes:
                for nodes in [1] if contestant == CTRANSLATE2 else args.nodes:
                    key = {"contestant": contestant, "weights": weights}
                    row = partial(time_row, opened, decoder, key, size, nodes, args.device)
                    key = key | {"batch_size": size, "nodes": nodes}
                    part.measure(key, row, peer=contestant not in (OURS, NO_GRAPHS))


@torch.no_grad()
def time_row(
    opened: list[Timer],
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
    ms = quartiles([MILLI * one for one in opened[0](encoder_out, nodes)])
    measured = key["contestant"] != CTRANSLATE2  # it has memory of its own
    return {"ms": ms, "peak_bytes": peak_bytes(device) if measured else None}


def ours(
    decoder: WhisperMedusaDecoder, weights: str, device: str, with_graphs: bool = True
) -> Timer:
    """Build our runtime; the module then returns to the CPU."""
    runtime = build_runtime(decoder.to(device), weights, with_graphs=with_graphs)
    decoder.to("cpu")

    def seconds(encoder_out: torch.Tensor, nodes: int) -> list[float]:
        return call_seconds(TreeCalls(runtime, encoder_out), nodes, REPEATS, device)

    return seconds


def transformers(
    decoder: WhisperMedusaDecoder, weights: str, device: str, compiled: bool = False
) -> Timer:
    """Build transformers' decoder with these weights; ``compiled``: each call is compiled."""
    dtype, mode = getattr(torch, weights), COMPILE_MODE[device]
    whisper = transformers_decoder(decoder).to(device, dtype)

    def seconds(encoder_out: torch.Tensor, nodes: int) -> list[float]:
        encoder_out = encoder_out.to(dtype)
        if compiled:
            calls = CompiledCalls(whisper, encoder_out, nodes, mode)
        else:
            calls = CachedCalls(whisper, encoder_out)
        return call_seconds(calls, nodes, REPEATS, device)

    return seconds


def ctranslate2(decoder: WhisperMedusaDecoder, weights: str, device: str) -> Timer:
    """Convert the decoder; a "call" is a step of ``generate``."""
    import ctranslate2
    from contestants.faster_whisper import convert

    eos, threads = end_symbol(decoder), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / weights
        convert(hugging_face_model(decoder, eos), eos, weights, path)
        options = {"compute_type": weights, "intra_threads": threads}
        model = ctranslate2.models.Whisper(str(path), device=device, **options)

    def generate(encoder_out: ctranslate2.StorageView, tokens: int) -> tuple[float, int]:
        """Return the seconds and the number of tokens of each text."""
        started, prompts = time.perf_counter(), [[eos]] * encoder_out.shape[0]
        limits = {"max_length": 2 * tokens, "suppress_tokens": [], "suppress_blank": False}
        results = model.generate(encoder_out, prompts, beam_size=1, **limits)
        return time.perf_counter() - started, len(results[0].sequences_ids[0])

    def seconds(encoder_out: torch.Tensor, nodes: int) -> list[float]:
        view = ctranslate2.StorageView.from_array(encoder_out.cpu().numpy())
        found = []
        for _ in range(1 + TEXT_REPEATS):
            (few_s, few), (many_s, many) = (generate(view, tokens) for tokens in TEXTS)
            found.append((many_s - few_s) / (many - few))
        return found[1:]  # the first one warms up

    return seconds


BUILDERS = {
    OURS: ours,
    NO_GRAPHS: partial(ours, with_graphs=False),
    TRANSFORMERS: transformers,
    COMPILED: partial(transformers, compiled=True),
    CTRANSLATE2: ctranslate2,
}


main = partial(run, measure, ["shape"])

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
