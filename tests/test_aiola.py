"""Parity of converted checkpoints with aiola-lab/whisper-medusa: logits, losses, greedy text."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny import bounds
from whole_logits import head_cross_entropy, head_divergence

from espnet_medusa.bin import convert
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.acceptance import AcceptanceOptions, build_rule
from espnet_medusa.search.ahead.shape import DraftShape
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.greedy import GreedySearch

NUM_HEADS = 4
CHAIN = DraftShape(NUM_HEADS)
CHOICES = DraftShape(NUM_HEADS, choices=(3, 2, 1, 1))  # [1, 3, 2, 1, 1] of aiola's tree models
MAX_LENGTH = 64


class Fixture:
    """An aiola model as an experiment of ours, and what aiola's code made of its inputs."""

    def __init__(self, source: Path, kind: str, folder: Path):
        self.tensors = load_file(source / f"aiola_{kind}.safetensors")
        weights = {name: value for name, value in self.tensors.items() if name[:3] != "fx."}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        for name in ("config.json", "generation_config.json"):
            shutil.copyfile(source / f"aiola_{kind}.{name}", folder / name)
        tokens, self.experiment = folder / "tokens.txt", folder / "exp"
        tokens.write_text("".join(f"w{number}\n" for number in range(211)))
        convert.main([str(folder), str(self.experiment), "--token_list", str(tokens)])
        self.speech2text = Speech2Text(
            asr_train_config=self.experiment / "config.yaml",
            asr_model_file=self.experiment / "model.pth",
            **yaml.safe_load((self.experiment / "conf" / "decode_exact.yaml").read_text()),
        )
        self.decoder = self.speech2text.asr_model.decoder

    def memory(self, sample: int) -> torch.Tensor:
        """(1, S, D) encoder output of a sample."""
        encoder = self.speech2text.asr_model.encoder.whisper
        with torch.no_grad():
            features = self.tensors["fx.input_features"][sample : sample + 1]
            return encoder(features).last_hidden_state


@pytest.fixture(scope="module", params=["linear", "block"])
def fixture(request, aiola_fixtures, tmp_path_factory):
    return Fixture(aiola_fixtures, request.param, tmp_path_factory.mktemp(request.param))


def test_logits_of_every_head(fixture):
    memory = fixture.memory(0)
    torch.testing.assert_close(
        memory, fixture.tensors["fx.encoder_last_hidden_state"], rtol=0, atol=1e-4
    )
    tokens = fixture.tensors["fx.decoder_input_ids"]
    with torch.no_grad():
        outputs = fixture.decoder.hidden_states(memory, torch.tensor([150]), tokens)
        base = fixture.decoder.logits(outputs.hidden)
        heads = head_logits(fixture.decoder, outputs.head_input)
    found = torch.stack([base, *heads])
    torch.testing.assert_close(found, fixture.tensors["fx.logits"], rtol=0, atol=1e-4)


def head_logits(decoder, head_input: torch.Tensor) -> list[torch.Tensor]:
    """What each head drafts behind every position (B, L, D), as searches ask for it: (B, L, V)."""
    surrogate, found = build_runtime(decoder).surrogate(), []
    states = surrogate.start_from(head_input.flatten(0, 1))
    for _ in range(NUM_HEADS):
        # Parallel heads do not look at the tokens.
        states = surrogate.advance(states, torch.zeros(head_input[..., 0].numel()).long())
        found.append(surrogate.logits(states).unflatten(0, head_input.shape[:2]))
    return found


def labels_of(fixture, name: str) -> torch.Tensor:
    labels = fixture.tensors[name]
    return labels.masked_fill(labels == -100, -1)


@pytest.mark.parametrize("heads_from", [0, 1])
def test_cross_entropy_of_every_head(fixture, heads_from):
    logits, labels = fixture.tensors["fx.train_logits"], labels_of(fixture, "fx.labels")
    name = "fx.loss.ce.orig_true" if heads_from == 0 else "fx.loss.ce.orig_false"
    found = [
        head_cross_entropy(logits[head], labels, head) for head in range(heads_from, NUM_HEADS + 1)
    ]
    torch.testing.assert_close(torch.stack(found), fixture.tensors[name], rtol=1e-5, atol=1e-5)


def test_short_labels_leave_late_heads_without_loss(fixture):
    labels = labels_of(fixture, "fx.labels_short")
    tokens = torch.cat([torch.tensor([[201]]), labels[:, :-1]], dim=1)
    with torch.no_grad():
        outputs = fixture.decoder.hidden_states(fixture.memory(0), torch.tensor([150]), tokens)
        logits = [
            fixture.decoder.logits(outputs.hidden),
            *head_logits(fixture.decoder, outputs.head_input),
        ]
    expected = fixture.tensors["fx.loss.ce_short.orig_true"]
    found = [head_cross_entropy(row, labels, head) for head, row in enumerate(logits)]
    torch.testing.assert_close(torch.stack(found[: len(expected)]), expected, rtol=1e-4, atol=1e-4)
    assert all(float(loss) == 0.0 for loss in found[len(expected) :])


def test_divergence_of_every_head_but_for_padding(fixture):
    """aiola counts padded positions; with none padded both agree, with some ours is less."""
    logits, labels = fixture.tensors["fx.train_logits"], labels_of(fixture, "fx.labels")
    expected = fixture.tensors["fx.loss.kl_lambda1.orig_true"]
    nothing_padded = labels.clamp(min=0)
    found = torch.stack(
        [
            head_divergence(logits[head], logits[0], nothing_padded, head)
            for head in range(NUM_HEADS + 1)
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    masked = head_divergence(logits[1], logits[0], labels, 1)
    assert 0 < float(masked) < float(expected[1])


def search(fixture, sample, rule, eos, shape=CHAIN):
    prompt = torch.tensor([[201, 210]])
    memory = fixture.memory(sample)
    decoder = build_runtime(fixture.decoder)
    greedy = GreedySearch(decoder, rule, Constraints(eos), decoder.surrogate(), shape)
    return greedy(memory, torch.tensor([150]), prompt, bounds([MAX_LENGTH - 2]))[0].tokens


@pytest.mark.parametrize("shape", [CHAIN, CHOICES], ids=["chain", "choices"])
@pytest.mark.parametrize("sample", [0, 1])
def test_exact_greedy_text(fixture, sample, shape):
    rule = build_rule(AcceptanceOptions("exact"))
    expected = fixture.tensors[f"fx.greedy_row0.{sample}"][0].tolist()[2:]
    assert search(fixture, sample, rule, eos=200, shape=shape) == expected
    # aiola stops up to num_heads tokens early, but writes the same until then.
    theirs = fixture.tensors[f"fx.gen.exact.{sample}.sequence"][0].tolist()[2:]
    assert theirs == expected[: len(theirs)]


@pytest.mark.parametrize("sample", [0, 1])
def test_end_symbol_stops(fixture, sample):
    eos = int(fixture.tensors["fx.eos_override"][sample])
    expected = fixture.tensors[f"fx.greedy_row0_eos.{sample}"][0].tolist()[2:]
    found = search(fixture, sample, build_rule(AcceptanceOptions("exact")), eos)
    assert [*found, eos] == expected


@pytest.mark.parametrize("sample", [0, 1])
def test_typical_text_starts_as_aiolas(fixture, sample):
    """aiola drafts anew after each pass, we behind other nodes: same text while drafts agree."""
    rule = build_rule(AcceptanceOptions("typical"))
    theirs = fixture.tensors[f"fx.gen.typical.{sample}.sequence"][0].tolist()[2:]
    found = search(fixture, sample, rule, eos=200)
    assert found[:4] == theirs[:4]


def test_decode_configs_are_aiolas(fixture):
    """Start, what is forced behind it, tree and thresholds."""
    assert fixture.speech2text.search.drafter.shape == DraftShape(4, choices=(1, 1, 1, 1))
    folder = fixture.experiment / "conf"
    typical = yaml.safe_load((folder / "decode_typical.yaml").read_text())
    assert (typical["typical_epsilon"], typical["typical_alpha"]) == (0.09, 0.3)
    assert typical["medusa_choices"] == [1, 1, 1, 1, 1]
    assert fixture.speech2text.asr_model.sos == 201 and typical["forced_prefix"] == [210]


def test_back_in_aiolas_format_nothing_has_changed(fixture, tmp_path):
    convert.main([str(fixture.experiment), str(tmp_path / "back"), "--to", "aiola"])
    found = load_file(tmp_path / "back" / "model.safetensors")
    assert found.keys() == {name for name in fixture.tensors if not name.startswith("fx.")}
    assert all(torch.equal(value, fixture.tensors[name]) for name, value in found.items())
