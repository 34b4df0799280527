"""Whisper's encoder on this CPU: who multiplies its 1500 rows fastest, and what a window takes.

Every candidate of a table takes its turn in every round. Milliseconds are the least of all rounds,
as others may use the machine; with ``--clock processor`` (one thread) they are the processor's.

    python bench/encoder_products.py --model openai/whisper-base \\
        --ctranslate2 Systran/faster-whisper-base
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine, machine_name

from espnet_medusa.errors import InputError
from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.runtime.encoder import build_encoder_runtime
from espnet_medusa.runtime.linear import ZERO_POINT, BlockedLinear, int8_product, zero_points
from espnet_medusa.runtime.native.library import kernels
from espnet_medusa.runtime.native.operations import (
    NativeBfloat16Linear,
    NativeLinear,
    multiply_rows,
)
from espnet_medusa.whisper.log_mel import SAMPLE_RATE_HZ

WINDOW_S = 30
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
Work = Callable[[], object]


def least_ms(
    candidates: Mapping[str, Work], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """The least time of each candidate, which take turns; once before, unmeasured."""
    found = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, work in candidates.items():
            started = clock()
            work()
            if number:
                found[name].append(1000 * (clock() - started))
    return {name: min(times) for name, times in found.items()}


def products(rows: int, inputs: int, outputs: int) -> dict[str, Work]:
    """One product, with its bias, in every way.

    Torch's own int8 product knows one scale for all rows, and is given integers; ours finds each
    row's scale and makes the integers.
    """
    hidden, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs) / inputs**0.5
    bias = torch.randn(outputs)
    halves = [tensor.bfloat16() for tensor in (hidden, weight, bias)]
    integers = (30 * weight).clamp(-127, 127).to(torch.int8)
    unsigned = (30 * hidden + ZERO_POINT).clamp(0, 255).to(torch.uint8)
    blocked = torch.ops.onednn.qlinear_prepack(integers, [rows, inputs])
    one, scales, points = torch.tensor(1.0), torch.ones(outputs), zero_points(outputs)
    signed = (unsigned.int() - ZERO_POINT).to(torch.int8)
    found = {
        "float32, torch": partial(torch.nn.functional.linear, hidden, weight, bias),
        "bfloat16, oneDNN": partial(BlockedLinear(halves[1], halves[2], None), halves[0]),
        "int8, oneDNN": partial(int8_product, unsigned, one, blocked, scales, points, bias),
        "int8, torch._int_mm": partial(torch._int_mm, signed, integers.t()),
    }
    if kernels() is not None:
        found |= {
            "bfloat16, ours": partial(multiply_rows, NativeBfloat16Linear(weight, bias), hidden),
            "int8, ours": partial(multiply_rows, NativeLinear(weight, bias), hidden),
        }
    return found


def attentions(rows: int, heads: int, size: int) -> dict[str, Work]:
    """Attention of all frames to all frames as torch has it."""
    queries, keys, values = torch.randn(3, 1, heads, rows, size)
    halves = queries.bfloat16(), keys.bfloat16(), values.bfloat16()
    attend = torch.nn.functional.scaled_dot_product_attention

    def apart() -> torch.Tensor:
        scores = halves[0] @ halves[1].transpose(-1, -2)
        return scores.softmax(-1) @ halves[2]

    return {
        "float32, torch": partial(attend, queries, keys, values),
        "bfloat16, torch": partial(attend, *halves),
        "bfloat16, products and softmax apart": apart,
    }


def windows(encoder: HFWhisperEncoder, ctranslate2: str | None, threads: int) -> dict[str, Work]:
    """Features and encoder of a window, samples to memory."""
    generator = torch.Generator().manual_seed(0)
    samples = 0.1 * torch.randn(1, WINDOW_S * SAMPLE_RATE_HZ, generator=generator)
    lengths = torch.tensor([samples.size(1)])

    def encode(runtime: Callable) -> object:
        return runtime(*encoder.features(samples, lengths))

    found: dict[str, Work] = {"features alone": partial(encoder.features, samples, lengths)}
    for name in ("float32", "bfloat16", "int8"):
        found[f"{name}, ours"] = partial(encode, build_encoder_runtime(encoder, name) or encoder)
    if ctranslate2 is not None:
        found |= {
            f"{name}, CTranslate2": ctranslate2_window(
                ctranslate2, name, samples[0].numpy(), threads
            )
            for name in ("float32", "int8")
        }
    return found


def ctranslate2_window(model: str, precision: str, samples: np.ndarray, threads: int) -> Work:
    """faster-whisper's features and CTranslate2's encoder."""
    from faster_whisper import WhisperModel

    loaded = WhisperModel(model, "cpu", compute_type=precision, cpu_threads=threads)

    def encode() -> object:
        features = loaded.feature_extractor(samples)[:, : WINDOW_S * 100]
        return loaded.encode(features)

    return encode


def table(title: str, found: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown: a row for each candidate, a column for each case."""
    rows = list(next(iter(found.values())))
    cells = [[name, *(f"{case[name]:.1f}" for case in found.values())] for name in rows]
    return f"{title}\n\n" + markdown_table(["ms", *found], cells, text_columns=1)


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a Whisper, as whisper_model")
    parser.add_argument("--ctranslate2", help="the same: CTranslate2 folder or name")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="without suffix; none: bench/results/MACHINE/")
    return parser


@torch.no_grad()
def main(cmd: Sequence[str] | None = None) -> None:
    """Run the command line ``cmd`` (default: this process's)."""
    args = get_parser().parse_args(cmd)
    if args.clock == "processor" and args.threads > 1:
        raise InputError(f"threads: {args.threads}; allowed with clock: processor: 1")
    torch.set_num_threads(args.threads)
    encoder = HFWhisperEncoder(whisper_model=args.model).eval()
    config = encoder.whisper.config
    rows, width, inner = config.max_source_positions, config.d_model, config.encoder_ffn_dim
    measure = partial(least_ms, rounds=args.rounds, clock=CLOCKS[args.clock])
    cases = [(width, 3 * width), (width, width), (width, inner), (inner, width)]
    heads = config.encoder_attention_heads
    found = {
        "products": {
            f"{rows}x{inputs} by {inputs}x{outputs}": measure(products(rows, inputs, outputs))
            for inputs, outputs in cases
        },
        "attention": {
            f"{rows} frames, {heads} heads": measure(attentions(rows, heads, width // heads))
        },
        "window": {"30 s": measure(windows(encoder, args.ctranslate2, args.threads))},
    }
    machine = describe_machine("cpu", args.threads)
    titles = {
        "products": "Products of the encoder's layers:",
        "attention": "Attention of a layer, by torch:",
        "window": "Features and encoder of a window:",
    }
    markdown = (
        f"{Path(args.model).name}; least of {args.rounds} rounds, {args.clock} time; "
        f"{machine['processor']}, {args.threads} threads.\n\n"
    ) + "\n\n".join(table(titles[name], cases) for name, cases in found.items())
    output = args.output
    if output is None:
        name = f"encoder_{width}_{args.clock}"
        output = Path(__file__).parent / "results" / machine_name("cpu") / name
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".md").write_text(markdown + "\n", encoding="utf-8")
    report = {"machine": machine, "clock": args.clock, "rounds": args.rounds, "ms": found}
    output.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    print(markdown)


if __name__ == "__main__":
    main()
