"""A tiny s2t experiment (OWSM's shape) with random weights, and random cases for its searches."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from espnet2.tasks.s2t import S2TTask
from experiment import dry_run, noise, save_random

TIMES = [f"<{number / 50:.2f}>" for number in range(101)]
TOKENS = [
    *("<blank>", "<unk>", "<na>", "<nospeech>", "<eng>", "<deu>", "<asr>", "<st_deu>"),
    *("<notimestamps>", *TIMES, "<space>", *"abcdefghijklmn", "<sos>", "<eos>", "<sop>"),
]
SIZES = {"attention_heads": 2, "linear_units": 48}
MODEL = {"ctc_weight": 0.3, "sym_sop": "<sop>", "sym_na": "<na>"}
NETWORKS = {
    "encoder": "transformer",
    "encoder_conf": SIZES | {"output_size": 32, "num_blocks": 1, "input_layer": "conv2d"},
    "decoder": "transformer", "decoder_conf": SIZES | {"num_blocks": 2},
    "input_size": None, "frontend": "default",
    "frontend_conf": {"fs": 16000, "n_fft": 256, "hop_length": 128}, "normalize": None,
    "token_type": "char",
}  # fmt: skip
SYMBOLS = {
    "notime_symbol": "<notimestamps>", "na_symbol": "<na>", "first_time_symbol": TIMES[0],
    "last_time_symbol": TIMES[-1], "speech_length": 2.0, "fs": 16000, "speech_resolution": 0.02,
}  # fmt: skip


def make_s2t_experiment(folder: Path, seed: int, **changes) -> dict[str, Path]:
    """Write a config with ``changes`` and random weights; return ESPnet's options of the files."""
    torch.manual_seed(seed)
    own = {"model_conf": MODEL, "preprocessor": "s2t", "preprocessor_conf": SYMBOLS}
    config = NETWORKS | own | changes
    config = dry_run(S2TTask, folder, config, "--seed", seed, tokens=TOKENS)
    save_random(S2TTask, folder, config, 0.3)
    return {"s2t_train_config": folder / "config.yaml", "s2t_model_file": folder / "model.pth"}


def medusa_config(heads: str, **model_conf) -> dict[str, Any]:
    conf = {"num_blocks": 2, "heads": heads, "heads_conf": {"num_heads": 3}}
    return {
        "decoder": "transformer_medusa", "decoder_conf": SIZES | conf,
        "model": "medusa", "model_conf": MODEL | model_conf,
    }  # fmt: skip


def add_heads(folder: Path, base: dict[str, Path], heads: str) -> dict[str, Path]:
    files = make_s2t_experiment(folder, 1, **medusa_config(heads))
    weights, own = (torch.load(one["s2t_model_file"]) for one in (base, files))
    for name, value in weights.items():
        own[name.replace("decoder.", "decoder.transformer.", name.startswith("decoder."))] = value
    torch.save(own, files["s2t_model_file"])
    return files


def random_options(rng: random.Random) -> dict[str, Any]:
    timed = rng.random() < 0.5
    return {
        "beam_size": rng.randint(1, 10),
        "predict_time": timed,
        "ctc_weight": 0.0 if timed else rng.choice([0.0, 0.1, 0.3, 0.5]),
        "penalty": rng.choice([0.0, 0.0, 0.2]),
        "maxlenratio": rng.choice([0.0, -8, -15, 0.3]),
        "minlenratio": rng.choice([0.0, 0.0, -3]),
        "nbest": rng.choice([1, 5]),
        "normalize_length": rng.random() < 0.3,
    }


def random_inputs(rng: random.Random, count: int) -> tuple[list[np.ndarray], list[dict]]:
    """Return noise, shorter and longer than the model's 2 s, and other arguments of calls."""
    speeches = [noise(rng.randrange(1000), rng.randint(8000, 40000)) for _ in range(count)]
    conditions = [
        {
            "text_prev": rng.choice([None, "abc", "hello", "n a", np.array([3, 4])]),
            "lang_sym": rng.choice([None, "<eng>", "<deu>"]),
            "task_sym": rng.choice([None, "<st_deu>"]),
        }
        for _ in speeches
    ]
    return speeches, conditions


def nbest_of(model: Callable[..., list], speech: np.ndarray, condition: dict) -> list | None:
    """Return ESPnet's n-best list; None: its CTC scores fail, for more tokens than frames."""
    try:
        return model(speech, **condition)
    except IndexError:
        return None


def difference(result: list, expected: list) -> str | None:
    """Return how an n-best list differs from ESPnet's; None: only scores do, by up to 1e-4.

    Hypotheses of probability 0 are left out, as ESPnet fills beams with arbitrary ones.
    """
    rows = [
        [(*row[:4], row[4].yseq.tolist(), float(row[4].score)) for row in nbest]
        for nbest in (result, expected)
    ]
    ours, theirs = ([row for row in nbest if np.isfinite(row[-1])] for nbest in rows)
    if len(ours) != len(theirs):
        return f"{len(ours)} hypotheses instead of {len(theirs)}"
    for rank, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one[:5] != other[:5] or abs(one[5] - other[5]) > 1e-4 * max(1, abs(other[5])):
            return f"rank {rank}: {one[2:]} instead of {other[2:]}"
    return None
