"""Tiny Whispers in memory, with heads of any kind, and folders of heads packed from them."""

import copy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from experiment import make_experiment, training_config, write_lines, write_noise
from tiny_whisper import tiny_config

from espnet_medusa.decoding.search.statistics import DecodingStatistics, write_statistics
from espnet_medusa.inference.convert.checkpoint import Architecture, Checkpoint
from espnet_medusa.inference.convert.heads_card import write_card
from espnet_medusa.inference.convert.names import COUNTS, DECODER, ENCODER, HEADS
from espnet_medusa.inference.convert.pack_heads import pack_heads
from espnet_medusa.networks.heads import HeadOptions, Trunk, build_heads
from espnet_medusa.networks.whisper.sizes import network_config
from espnet_medusa.networks.whisper.text import Text
from espnet_medusa.networks.whisper_modules import WhisperDecoder, WhisperEncoder

VOCAB_SIZE = 60
NUM_HEADS = 3
SAID = {
    "base_model": "openai/whisper-tiniest",
    "license": "mit",
    "language": ["en", "de"],
    "training_data": {"noise": "public domain"},
    "commands": ["./run.sh"],
    "acceptance": {"data": "dev"},
    "draft_conf": {"greedy": {"draft_depth": 2, "draft_vocab_size": 20}},
}


def tiny_base(seed: int = 0, hidden_size: int = 16) -> Checkpoint:
    """Build a random Whisper whose weights are exact in float16."""
    positions = {"max_source_positions": 50, "max_target_positions": 120}
    config = tiny_config(VOCAB_SIZE, hidden_size, **positions)
    generator = torch.Generator().manual_seed(seed)
    weights = {
        prefix + name: (0.25 * torch.randn(value.shape, generator=generator)).half().float()
        for prefix, kind in ((ENCODER, WhisperEncoder), (DECODER, WhisperDecoder))
        for name, value in kind(config).state_dict().items()
    }
    tokens = tuple(f"w{number}" for number in range(VOCAB_SIZE))
    return Checkpoint("base", Architecture(config), weights, Text(tokens, 0, 1))


def with_heads(base: Checkpoint, kind: str, seed: int = 1, **options) -> Checkpoint:
    """Add heads whose weights, except for the base head's, differ from their initial values."""
    options = HeadOptions(num_heads=NUM_HEADS, **options)
    architecture = replace(base.architecture, heads=kind, head_options=options)
    config = network_config(architecture.whisper, 0.0)
    last = copy.deepcopy(WhisperDecoder(config).layers[-1])
    heads = build_heads(kind, Trunk(config.d_model, config.vocab_size, last), options)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in heads.named_parameters():
        if not name.startswith("base."):
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    own = {HEADS + name: value.detach() for name, value in heads.state_dict().items()}
    own[COUNTS] = torch.arange(config.vocab_size) % 50  # at least two tokens have no count
    return replace(base, name="trained", architecture=architecture, weights=base.weights | own)


def write_sources(folder: Path, **changes) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    write_card(folder, {**SAID, **changes}, "# Heads\n")
    decoded = DecodingStatistics(decoder_calls=10, tokens=24, drafted=[8, 8, 4], accepted=[6, 4, 1])
    write_statistics(folder / "statistics.json", {"a": decoded, "b": decoded})
    return folder / "README.md", folder / "statistics.json"


def pack(folder: Path, trained: Checkpoint, base: Checkpoint, **changes) -> Path:
    """Write a folder of heads; ``changes`` replace fields of the card."""
    folder.mkdir(parents=True)
    with TemporaryDirectory() as sources:
        pack_heads(trained, base, *write_sources(Path(sources), **changes), folder)
    return folder


def make_recipe(folder: Path) -> Path:
    sizes = training_config()["decoder_conf"]
    conf = {"decoder_conf": sizes | {"heads": "recurrent"}}
    heads = make_experiment(folder / "exp" / "asr_recurrent", **conf)
    conf = {"decoder_conf": sizes | {"heads": "none", "heads_conf": {}}}
    base = make_experiment(folder / "exp" / "asr_base", **conf)
    weights = torch.load(heads.model)
    torch.save(weights, heads.folder / "valid.acc_heads.ave.pth")
    of_heads = ("decoder.heads.", "decoder.token_counts")
    frozen = {name: weight for name, weight in weights.items() if not name.startswith(of_heads)}
    for name in ("valid.acc.ave.pth", base.model.name):
        torch.save(frozen, base.folder / name)
    data_dir = folder / "data"
    data_dir.mkdir()
    audio, texts = {}, {}
    for index, key in enumerate("abcd"):
        audio[key], texts[key] = f"data/{index}.wav", "ef" if index % 2 else "ab cd"
        write_noise(folder / audio[key], 0.8 + 0.4 * (index % 3), index)
    write_lines(data_dir / "wav.scp", audio)
    write_lines(data_dir / "text", texts)
    return folder
