"""The shortest interval between live updates that this machine holds, for Whisper's larger shapes.

python bench/live_shapes.py --shapes small large-v3-turbo --folder /var/tmp/shapes

The folder is that of ``whisper_shapes.py``.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine, machine_name
from one_shape import OURS, RATE_HZ
from whisper_shapes import RESULTS, SHAPES, write_weights

from espnet_medusa import Speech2Text
from espnet_medusa.data.command_line import positive, run_main
from espnet_medusa.inference.longform.recording import Row
from espnet_medusa.inference.longform.window import Window
from espnet_medusa.inference.longform.window_steps import Attempt
from espnet_medusa.recipes.report.markdown import markdown_table

TOKENS_PER_S, REVISED, PROMPT = 3.3, 8, 100
NOTES = """\
Weights and audio are random. An update encodes a full buffer and decodes a text of 3.3 tokens per
second, as many as speech has, after a prompt of 100 tokens. The text of the last update drafts, and
is right but for its last 8 tokens, as with base on real speech. Word times and voice activity are
not included. Medians of several updates.
"""
HEADER = ["shape", "encoder [ms]", "decoder [ms]", "decoder without drafts [ms]", "calls",
          "shortest interval [s]"]  # fmt: skip


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shapes", nargs="+", choices=[*SHAPES], default=["small", "large-v3-turbo"])
    add("--folder", type=Path, required=True, help="for the weights: up to 7 GB per shape")
    add("--buffer_seconds", type=float, default=15.0)
    add("--rounds", type=positive, default=3)
    add("--threads", type=positive, default=2)
    add("--output", type=Path, help="page; default: bench/results/MACHINE/live_shapes.md")
    return parser


def measure(weights: Path, buffer_s: float, rounds: int) -> list[float]:
    """Return the columns after the name of a shape."""
    count = round(TOKENS_PER_S * buffer_s)
    options = {"search": "greedy", "language": "en", "decoder_precision": "int8", "mapped": True}
    options |= {"maxlenratio": -count, "minlenratio": -count, "suppress_tokens": []}
    model = Speech2Text(weights / "config.yaml", weights / "model.pth", **options)
    model.release_weights()
    live, rng = model.live(skip_silence=False), np.random.default_rng(0)
    decoder, how = live.decoder, Attempt(0.0, timestamps=False)
    prompt = rng.integers(1000, 20000, PROMPT).tolist()
    times, calls = [], 0
    for _ in range(rounds + 1):  # the first one warms up
        samples = rng.normal(0, 0.1, round(buffer_s * RATE_HZ)).astype(np.float32)
        started = time.perf_counter()
        features = decoder.features(samples)
        encoded = decoder.encode([(features, Window(0, features.frames))])
        parts = [time.perf_counter() - started]

        def decode(draft, encoded=encoded):
            started = time.perf_counter()
            ((decoding, counts),) = decoder.decode(encoded, [Row(0, prompt, "en", draft)], how)
            return time.perf_counter() - started, [*decoding.tokens], counts.decoder_calls

        without, tokens, _ = decode(None)
        draft = tokens[: -REVISED or None] + rng.integers(1000, 20000, REVISED).tolist()
        drafted, again, calls = decode(draft)
        if again != tokens:
            raise AssertionError("a draft has changed the text")
        times.append([*parts, drafted, without])
    encoder, drafted, without = map(statistics.median, zip(*times[1:], strict=True))
    return [1000 * encoder, 1000 * drafted, 1000 * without, calls, encoder + drafted]


def work(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    rows = []
    for shape in args.shapes:
        write_weights(shape, args.folder / shape)
        *figures, interval = measure(args.folder / shape / OURS, args.buffer_seconds, args.rounds)
        rows.append([shape, *(f"{figure:.0f}" for figure in figures), f"{interval:.2f}"])
        print(rows[-1], flush=True)
    processor = describe_machine("cpu", args.threads)["processor"]
    about = f"{processor}, {args.threads} threads, int8, buffer of {args.buffer_seconds:g} s."
    table = markdown_table(HEADER, rows, text_columns=1)
    output = args.output or RESULTS / machine_name("cpu") / "live_shapes.md"
    page = f"# Live updates of larger shapes\n\n{about}\n\n{table}\n{NOTES}"
    output.write_text(page, encoding="utf-8")
    print(output)


def main(cmd: Sequence[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    run_main("live_shapes.py", lambda: work(args))


if __name__ == "__main__":
    main()
