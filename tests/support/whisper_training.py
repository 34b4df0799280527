"""conf/train/whisper_*.yaml on a tiny Whisper and noise, through asr_train."""

from pathlib import Path

import numpy as np
import torch
import yaml
from experiment import write_corpus, write_lines
from tiny_whisper import save_tiny_whisper, save_tokenizer_of_bytes

from espnet_medusa.bin import asr_train

CONFIGS = Path(__file__).resolve().parents[2] / "conf" / "train"


def make_corpus(folder: Path) -> Path:
    """A random Whisper with its tokens, sixteen noises, texts."""
    tokens = save_tokenizer_of_bytes(folder / "tokenizer")
    (folder / "tokens.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    save_tiny_whisper(folder / "whisper", vocab_size=len(tokens))
    write_corpus(folder, {f"u{index}": 0.3 + 0.01 * index for index in range(16)})
    rng = np.random.default_rng(0)
    words = [list(rng.choice(list("abcdefghijklm"), 12)) for _ in range(16)]
    for name, counts in {"text": [1, 2, 3, 4, 5, 6] * 3, "even_text": [2] * 16}.items():
        texts = (" ".join(row[:count]) for row, count in zip(words, counts, strict=False))
        write_lines(folder / name, {f"u{index}": text for index, text in enumerate(texts)})
    return folder


def command_of(corpus, output, system, text="text", data=None, **changes) -> list[str]:
    """Return asr_train's options for a YAML of ``conf/train`` with a tiny Whisper and data."""
    data = data or [f"{corpus}/wav.scp,speech,sound", f"{corpus}/{text},text,text"]
    config = yaml.safe_load((CONFIGS / f"whisper_{system}.yaml").read_text(encoding="utf-8"))
    for half in ("encoder_conf", "decoder_conf"):
        config[half]["whisper_model"] = str(corpus / "whisper")
    config["encoder_conf"]["window"] = "audio"  # less to compute
    if "ctc_units" in config["model_conf"]:
        config["model_conf"]["ctc_units"] = 256  # the tokenizer has bytes alone
    config |= {"num_workers": 0, "use_tensorboard": False, "use_matplotlib": False} | changes
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".yaml").write_text(yaml.safe_dump(config))
    options = ["--config", output.with_suffix(".yaml"), "--output_dir", output, "--ngpu", "0"]
    options += ["--token_list", corpus / "tokens.txt", "--bpemodel", corpus / "tokenizer"]
    return [*map(str, options), *for_both_sets("data_path_and_name_and_type", *data)]


def for_both_sets(option: str, *values: str | Path) -> list[str]:
    return [
        word for part in ("train", "valid") for value in values
        for word in (f"--{part}_{option}", str(value))
    ]  # fmt: skip


def shapes(*files: Path) -> list[str]:
    return for_both_sets("shape_file", *files)


def train(corpus, output, system, *options, **changes) -> Path:
    """Train on all utterances, shortest audio first; returns ``output``."""
    return run_training(output, *command_of(corpus, output, system, **changes), *options)


def run_training(output: Path, *command: str) -> Path:
    keys = output.parent / "speech_shape"
    write_lines(keys, {f"u{index}": 4800 + index for index in range(16)})
    asr_train.main([*command, *shapes(keys)])
    return output


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)


def losses(output: Path, part: str) -> dict[int, float]:
    state = torch.load(output / "checkpoint.pth", weights_only=False)["reporter"]
    return {epoch: values[part]["loss"] for epoch, values in state["stats"].items()}
