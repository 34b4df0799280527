"""Measure peak memory and seconds of a training step: fine-tuning without heads, and ten heads.

python bench/training_memory.py
python bench/training_memory.py --device cuda --hidden_sizes 1280 --layers 32

Trained parameters and losses come from conf/train/whisper_*.yaml; weights and data are random. Each
measurement has its own process. "process": growth of its peak (VmHWM, or torch's allocations on the
GPU) over the loaded model during two steps. "s/step": seconds of the second step, on CPUs processor
time of all threads. "tensors": peak of torch's CPU allocator during forward and backward of a third
step. "whole logits" computes the same loss by its definition.
"""

import argparse
import ctypes
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from contestants.worker import forget_peak, peak_bytes
from espnet2.asr.ctc import CTC
from machine import wait_for
from transformers.optimization import Adafactor
from whole_logits import WholeLogitsModel

from espnet_medusa.espnet.training.asr_model import MedusaASRModel
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder
from espnet_medusa.recipes.report.markdown import markdown_table

CONFIGS = Path(__file__).resolve().parents[1] / "conf" / "train"
JOINT = "linear, encoder frozen"
BASELINE, *HEADS = SYSTEMS = ("finetune", "linear", "block", "recurrent", JOINT)
KINDS = {"in chunks": MedusaASRModel, "whole logits": WholeLogitsModel}
SAMPLE_RATE_HZ, FRAMES_PER_S = 16000, 50
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and a batch; all utterances have the same length."""

    hidden_size: int
    layers: int = 4
    vocab_size: int = 51865
    num_heads: int = 10
    batch_size: int = 8
    tokens: int = 40
    seconds: float = 10.0


@dataclass(frozen=True)
class Measurement:
    """A step; ``tensor_bytes`` is None on a GPU, where ``peak_bytes`` counts tensors."""

    peak_bytes: int
    tensor_bytes: int | None
    seconds: float


class Allocation(NamedTuple):  # bytes that torch's CPU allocator allocated
    peak: int  # largest total
    largest: int  # largest tensor


def allocation_of(run: Callable[[], None]) -> Allocation:
    """Run a function under torch's memory profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run()
    events = profile.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    sizes = torch.tensor([size for _, size in changes])
    return Allocation(int(sizes.cumsum(0).max()), int(sizes.max()))


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--hidden_sizes", type=int, nargs="+", default=[128, 384])
    add("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    add("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    add("--layers", type=int, default=Sizes.layers, help="layers of encoder and decoder")
    add("--device", default="cpu", choices=["cpu", "cuda"])
    add("--threads", type=int, default=1)
    return parser


def build_model(system: str, kind: str, sizes: Sizes) -> MedusaASRModel:
    """Build a random model with the training options of its YAML."""
    path = CONFIGS / f"whisper_{'linear' if system == JOINT else system}.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    if system == JOINT:  # only the encoder is frozen, as in fine-tuning
        config["model_conf"]["freeze_whisper"] = "nothing"
        config["freeze_param"] = ["encoder"]
    decoder_conf = dict(config["decoder_conf"])
    del decoder_conf["whisper_model"]
    if "heads_conf" in decoder_conf:
        decoder_conf["heads_conf"] |= {"num_heads": sizes.num_heads}
    shape = {
        "num_blocks": sizes.layers,
        "attention_heads": max(1, sizes.hidden_size // 64),
        "linear_units": 4 * sizes.hidden_size,
    }
    frames = int(FRAMES_PER_S * sizes.seconds)
    encoder = HFWhisperEncoder(output_size=sizes.hidden_size, max_source_positions=frames, **shape)
    decoder = WhisperMedusaDecoder(sizes.vocab_size, sizes.hidden_size, **shape, **decoder_conf)
    token_list = [*map(str, range(sizes.vocab_size - 2)), "<|startoftranscript|>", "<|endoftext|>"]
    model = KINDS[kind](
        vocab_size=sizes.vocab_size, token_list=token_list, frontend=None, specaug=None,
        normalize=None, preencoder=None, encoder=encoder, postencoder=None, decoder=decoder,
        ctc=CTC(1, sizes.hidden_size), joint_network=None, **config["model_conf"],
    )  # fmt: skip
    for name in config.get("freeze_param", []):
        model.get_submodule(name).requires_grad_(False)
    return model.train()


def random_batch(sizes: Sizes) -> dict[str, torch.Tensor]:
    """Build a batch as ESPnet's trainer does."""
    samples = int(sizes.seconds * SAMPLE_RATE_HZ)
    return {
        "speech": 0.1 * torch.randn(sizes.batch_size, samples),
        "speech_lengths": torch.full((sizes.batch_size,), samples),
        "text": torch.randint(sizes.vocab_size - 2, (sizes.batch_size, sizes.tokens)),
        "text_lengths": torch.full((sizes.batch_size,), sizes.tokens),
    }


def measure(system: str, kind: str, sizes: Sizes, device: str, threads: int) -> Measurement:
    """Measure two steps; call it once per process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = build_model(system, kind, sizes).to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = Adafactor(trained, lr=1e-4, scale_parameter=False, relative_step=False)
    batch = {name: value.to(device) for name, value in random_batch(sizes).items()}
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # memory that building the model freed does not count
    if on_gpu := device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        forget_peak()
    before = torch.cuda.memory_allocated() if on_gpu else peak_bytes()
    clock = time.perf_counter if on_gpu else time.process_time
    for _ in range(2):
        start = clock()
        model(**batch)[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        wait_for(device)
        seconds = clock() - start
    peak = torch.cuda.max_memory_allocated() if on_gpu else peak_bytes()
    tensors = None if on_gpu else allocation_of(lambda: model(**batch)[0].backward()).peak
    return Measurement(peak - before, tensors, seconds)


def table(measured: dict[tuple[str, str], Measurement]) -> str:
    """Return a Markdown table with a row for each system, from measurements by system and kind."""
    kinds = list(dict.fromkeys(kind for _, kind in measured))
    names = ("process [MiB]", "x baseline", "tensors [MiB]", "x baseline", "s/step")
    titles = ["", *(f"{kind}: {name}" for kind in kinds for name in names)]
    rows = []
    for system in dict.fromkeys(system for system, _ in measured):
        cells = [system]
        for kind in kinds:
            value, plain = measured[system, kind], measured.get((BASELINE, kind))
            for name in ("peak_bytes", "tensor_bytes"):
                size = getattr(value, name)
                cells.append("" if size is None else f"{size / MEBIBYTE:.0f}")
                unknown = size is None or plain is None
                cells.append("" if unknown else f"{size / getattr(plain, name):.2f}")
            cells.append(f"{value.seconds:.2f}")
        rows.append(cells)
    return markdown_table(titles, rows, text_columns=1)


def main(command: list[str] | None = None) -> None:
    args = get_parser().parse_args(command)
    spawn = multiprocessing.get_context("spawn")
    for hidden_size in args.hidden_sizes:
        sizes = Sizes(hidden_size, args.layers)
        measured = {}
        for system, kind in product(args.systems, args.kinds):
            with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                work = pool.submit(measure, system, kind, sizes, args.device, args.threads)
                measured[system, kind] = work.result()
            print(f"{hidden_size} {system}, {kind}: {measured[system, kind]}", file=sys.stderr)
        print(f"\n{sizes}, {args.device}\n\n{table(measured)}", flush=True)


if __name__ == "__main__":
    main()
