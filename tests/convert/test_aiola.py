"""Parity of converted checkpoints with aiola-lab/whisper-medusa: logits, losses, greedy text."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny import bounds
from transformers import WhisperConfig, WhisperModel
from whole_logits import head_cross_entropy, head_divergence

from espnet_medusa.bin import convert
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.acceptance import build_rule
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.drafting.lookahead import DraftShape
from espnet_medusa.search.greedy import greedy_search
from espnet_medusa.search.options import SearchOptions

NUM_HEADS = 4
CHAIN = DraftShape(NUM_HEADS)
CHOICES = DraftShape(NUM_HEADS, choices=(3, 2, 1, 1))  # [1, 3, 2, 1, 1] of aiola's tree models
MAX_LENGTH = 64


class Golden:
    """An aiola model as an experiment of ours, and the output of aiola's code."""

    def __init__(self, source: Path, kind: str, folder: Path):
        facts = json.loads((source / "facts.json").read_text())
        self.tokens, self.labels, self.labels_short = (
            torch.tensor(facts[name]) for name in ("tokens", "labels", "labels_short")
        )
        self.facts = facts[kind]
        self.weights = load_file(source / "decoder.safetensors")
        self.memory = self.weights.pop("memory")
        self.weights |= load_file(source / f"{kind}.safetensors")
        self.logits = self.weights.pop("logits")
        config = json.loads((source / "config.json").read_text())
        config["medusa_heads_type"] = {"linear": "base_head", "block": "medusa_block"}[kind]
        encoder = WhisperModel(WhisperConfig.from_dict(config)).encoder  # random, not used
        prefix = "whisper_model.model.encoder."
        self.weights |= {prefix + name: value for name, value in encoder.state_dict().items()}
        save_file(self.weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        shutil.copy(source / "generation_config.json", folder)
        tokens, self.experiment = folder / "tokens.txt", folder / "exp"
        tokens.write_text("".join(f"w{number}\n" for number in range(211)))
        convert.main([str(folder), str(self.experiment), "--token_list", str(tokens)])
        options = yaml.safe_load((self.experiment / "conf" / "decode_exact.yaml").read_text())
        files = (self.experiment / name for name in ("config.yaml", "model.pth"))
        self.decoder = Speech2Text(*files, **options).asr_model.decoder

    @torch.no_grad()
    def logits_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """(K + 1, U, L, V) of the first U utterances, the base head first; heads as in searches."""
        memory = self.memory[: len(tokens)]
        lengths = torch.full((len(tokens),), memory.size(1))
        outputs = self.decoder.hidden_states(memory, lengths, tokens)
        proposer = build_runtime(self.decoder).proposer()
        found = [self.decoder.logits(outputs.hidden)]
        states = proposer.start_from(outputs.head_input.flatten(0, 1))
        for _ in range(NUM_HEADS):
            # Parallel heads ignore the tokens.
            states = proposer.advance(states, torch.zeros(tokens.numel()).long())
            found.append(proposer.logits(states).unflatten(0, tokens.shape))
        return torch.stack(found)


@pytest.fixture(scope="module", params=["linear", "block"])
def golden(request, aiola_golden, tmp_path_factory):
    return Golden(aiola_golden, request.param, tmp_path_factory.mktemp(request.param))


def test_logits_of_every_head(golden):
    found = golden.logits_of(golden.tokens)
    torch.testing.assert_close(found[:, 0], golden.logits, rtol=0, atol=1e-4)


def shifted(labels: torch.Tensor) -> torch.Tensor:
    """Return the decoder's input: start token and labels, padded with the end token."""
    read = labels[:, :-1].masked_fill(labels[:, :-1] == -100, 200)
    return torch.nn.functional.pad(read, (1, 0), value=201)


def ours(labels: torch.Tensor) -> torch.Tensor:
    return labels.masked_fill(labels == -100, -1)


@pytest.mark.parametrize("kind", ["", "_short"])
def test_cross_entropy_of_every_head(golden, kind):
    """Short labels leave late heads without loss."""
    labels, expected = getattr(golden, f"labels{kind}"), golden.facts[f"cross_entropy{kind}"]
    logits = golden.logits_of(shifted(labels))
    found = [float(head_cross_entropy(row, ours(labels), k)) for k, row in enumerate(logits)]
    assert found == pytest.approx(expected + [0.0] * (len(logits) - len(expected)), abs=1e-4)


def test_divergence_of_every_head_but_for_padding(golden):
    """aiola counts padded positions: both agree without padding, with padding ours is smaller."""
    logits, labels = golden.logits_of(shifted(golden.labels)), ours(golden.labels)
    nothing_padded = labels.clamp(min=0)
    heads = enumerate(logits)
    found = [float(head_divergence(row, logits[0], nothing_padded, head)) for head, row in heads]
    assert found == pytest.approx(golden.facts["divergence"], rel=1e-5, abs=1e-4)
    assert 0 < float(head_divergence(logits[1], logits[0], labels, 1)) < found[1]


def search(golden, sample, rule, eos, shape=CHAIN):
    prompt = torch.tensor([[201, 210]])
    memory = golden.memory[sample : sample + 1]
    decoder = build_runtime(golden.decoder)
    greedy = greedy_search(decoder, rule, Constraints(eos), decoder.proposer(), shape)
    return greedy(memory, torch.tensor([150]), prompt, bounds([MAX_LENGTH - 2]))[0].tokens


@pytest.mark.parametrize("shape", [CHAIN, CHOICES], ids=["chain", "choices"])
@pytest.mark.parametrize("sample", [0, 1])
def test_exact_greedy_text(golden, sample, shape):
    rule = build_rule(SearchOptions(acceptance="exact"))
    expected = golden.facts["greedy"][sample][2:]
    assert search(golden, sample, rule, eos=200, shape=shape) == expected
    # aiola stops up to num_heads tokens early, but writes the same until then.
    theirs = golden.facts["exact"][sample][2:]
    assert theirs == expected[: len(theirs)]


@pytest.mark.parametrize("sample", [0, 1])
def test_the_end_symbol_stops_and_typical_text_starts_as_aiolas(golden, sample):
    exact, typical = (build_rule(SearchOptions(acceptance=x)) for x in ("exact", "typical"))
    eos = golden.facts["eos"][sample]
    assert [*search(golden, sample, exact, eos), eos] == golden.facts["greedy_eos"][sample][2:]
    # aiola drafts from other nodes; the text is the same while drafts agree.
    assert search(golden, sample, typical, eos=200)[:4] == golden.facts["typical"][sample][2:6]


def test_converting_back_to_aiolas_format_changes_nothing(golden, tmp_path):
    convert.main([str(golden.experiment), str(tmp_path / "back"), "--to", "aiola"])
    found = load_file(tmp_path / "back" / "model.safetensors")
    torch.testing.assert_close(found, golden.weights, rtol=0, atol=0)
