"""Whisper's decoder against transformers'; initial values, unrolling and options of heads."""

import pytest
import torch
from cases import cases
from refusals import refuses
from tiny import HIDDEN_SIZE, VOCAB_SIZE, random_encoder_out, tiny_decoder
from transformers_whisper import tiny_whisper

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.networks.heads import HEAD_TYPES, HeadOptions, Trunk, build_heads
from espnet_medusa.networks.multi_token_decoder import HiddenStates
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder

CLOSE = {"rtol": 0.0, "atol": 1e-5}


@pytest.fixture
def whole(tmp_path):
    return tiny_whisper(tmp_path, 60, hidden_size=HIDDEN_SIZE, max_target_positions=30)


def test_forward_equals_transformers_decoder(whole):
    sizes = {"attention_heads": 2, "linear_units": 2 * HIDDEN_SIZE, "max_target_positions": 30}
    decoder = WhisperMedusaDecoder(60, HIDDEN_SIZE, num_blocks=2, **sizes).eval()
    decoder.whisper.load_state_dict(whole.model.decoder.state_dict())
    encoder_out, lengths = random_encoder_out(1, [20, 20])
    tokens = torch.randint(0, 60, (2, 7))
    expected = whole(encoder_outputs=(encoder_out,), decoder_input_ids=tokens).logits
    result, _ = decoder(encoder_out, lengths, tokens, torch.tensor([7, 7]))
    torch.testing.assert_close(result, expected, **CLOSE)


def test_hugging_face_folder_is_loaded(whole, tmp_path):
    """Layers of heads are initialized from the last layer."""
    last = whole.model.decoder.layers[-1].state_dict()
    for heads, layer in (("block", "block"), ("attending", "layer")):
        conf = {"whisper_model": str(tmp_path), "heads": heads, "heads_conf": {"num_heads": 2}}
        copied = getattr(WhisperMedusaDecoder(60, HIDDEN_SIZE, **conf).heads, layer).state_dict()
        assert copied and all(torch.equal(value, last[name]) for name, value in copied.items())
    assert not any("self_attn" in name or "k_proj" in name for name in copied)


@refuses(
    (61, {"whisper_model": "."}, "token_list has 61 tokens.*60"),
    (60, {"whisper_model": "./nothing"}, "config.json"),
    (60, {"num_block": 2}, "unknown option 'num_block'.*did you mean 'num_blocks'"),
)
def test_invalid_options_are_refused(vocab_size, options, whole, in_folder):
    WhisperMedusaDecoder(vocab_size, HIDDEN_SIZE, **options)


@pytest.mark.parametrize("heads", ["none", "block", "llama none", "llama block"])
def test_branches_do_not_attend_to_each_other(heads, no_gradients):
    decoder = tiny_decoder(0, heads)
    encoder_out, lengths = random_encoder_out(0, [9, 4])
    tokens = torch.randint(0, VOCAB_SIZE, (2, 3, 5))
    together = decoder.hidden_states(encoder_out, lengths, tokens.flatten(1), branches=3)
    for branch in range(3):
        alone = decoder.hidden_states(encoder_out, lengths, tokens[:, branch])
        for result, expected in zip(together[:3], alone[:3], strict=True):
            torch.testing.assert_close(result[:, 5 * branch :][:, :5], expected, **CLOSE)


def decoder_of(heads: str, **heads_conf) -> WhisperMedusaDecoder:
    """A decoder with the initial weights of its constructor."""
    torch.manual_seed(0)
    return WhisperMedusaDecoder(
        VOCAB_SIZE, HIDDEN_SIZE, num_blocks=2, attention_heads=4, linear_units=48,
        max_target_positions=64, heads=heads, heads_conf=heads_conf,
    ).eval()  # fmt: skip


def keys_values_for(decoder, frames):
    """Random cross-attention keys and values, for heads that require them."""
    if not decoder.heads.uses_cross_attention:
        return None
    return decoder.project_encoder_out(*random_encoder_out(0, frames))


@cases(
    *((heads, 1) for heads in HEAD_TYPES),
    *((heads, 2) for heads in ("linear", "block", "recurrent")),
)
def test_heads_start_untrained(heads, num_layers):
    decoder = decoder_of(heads, num_heads=3, num_layers=num_layers)
    assert not build_runtime(decoder).heads_trained
    labels = torch.randint(0, VOCAB_SIZE, (2, 5))
    head_input = torch.randn(2, 5, HIDDEN_SIZE)
    seen = HiddenStates(*[head_input] * 3, keys_values_for(decoder, [6, 4])), labels
    for step, logits in enumerate(decoder.unroll_heads(*seen), start=1):
        expected = decoder.project(head_input)[:, : 5 - step]
        if heads == "projection":
            expected = torch.zeros_like(expected)
        if heads != "attending":  # whose cross-attention changes their input from the start
            torch.testing.assert_close(logits, expected, **CLOSE)  # the heads' input, unchanged
    optimizer = torch.optim.SGD(decoder.heads.parameters(), lr=0.1)
    torch.cat([*decoder.unroll_heads(*seen)], dim=1).log_softmax(-1)[..., 0].sum().backward()
    optimizer.step()
    assert build_runtime(decoder).heads_trained


def test_a_trained_base_head_does_not_count_as_trained_heads():
    decoder = decoder_of("linear", num_heads=2, base_head=True)
    torch.nn.init.ones_(decoder.heads.base.layers[0].weight)
    assert not build_runtime(decoder).heads_trained
    assert not build_runtime(decoder_of("none")).heads_trained


@pytest.mark.parametrize("heads", HEAD_TYPES)
def test_no_heads_and_more_heads_than_tokens(heads):
    assert build_heads(heads, Trunk(HIDDEN_SIZE, VOCAB_SIZE), HeadOptions(num_heads=0)) is None
    decoder = decoder_of(heads, num_heads=4)
    states = HiddenStates(*[torch.randn(1, 2, HIDDEN_SIZE)] * 3, keys_values_for(decoder, [3]))
    unrolled = decoder.unroll_heads(states, torch.zeros(1, 2).long())
    assert [part.size(1) for part in unrolled] == [1, 0, 0, 0]


@pytest.mark.parametrize("own_block", [True, False])
def test_recurrent_heads_by_hand(own_block, no_gradients):
    """Step by step from one position, against all positions at once."""
    decoder = decoder_of("recurrent", num_heads=3, own_block=own_block)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens, labels = torch.randint(0, VOCAB_SIZE, (2, 1, 7))
    outputs = decoder.hidden_states(*random_encoder_out(0, [5]), tokens)
    assert torch.equal(outputs.hidden, outputs.head_input) != own_block
    unrolled = [*decoder.unroll_heads(outputs, labels)]
    heads, embeddings = decoder.heads, decoder.whisper.embed_tokens.weight
    for position in range(4):
        state = outputs.head_input[0, position]
        for step in range(3):
            state = heads.advance(state, embeddings[labels[0, position + step]])
            found = unrolled[step][0, position]
            torch.testing.assert_close(found, embeddings @ heads(state), **CLOSE)


@refuses(
    ("linear", {"own_block": True}, "heads_conf.own_block: True; allowed with"),
    ("block", {"own_block": False}, "heads_conf.own_block: False; allowed with"),
    ("recurrent", {"own_block": "no"}, "heads_conf: own_block: 'no'; allowed: true, false"),
    (
        "attending",
        {"num_layers": 2},
        "num_layers: 2; only allowed for heads: linear, block, recurrent;",
    ),
    ("latent", {"own_block": True}, "own_block: True; only allowed for heads: linear, block, rec"),
    (
        "projection",
        {"num_layers": 2},
        "num_layers: 2; only allowed for heads: linear, block, recurrent;",
    ),
    ("latent", {"base_head": True}, "base_head: True; only allowed for heads: linear, block, rec"),
    ("attending", {"dropout": 1.0}, "heads_conf.dropout: 1.0; allowed: from 0 to below 1"),
    ("linear", {"dropout": 0.1}, "heads_conf.dropout: 0.1; only allowed for heads: attending"),
    ("recurrent", {"dropout": 0.1}, "heads_conf.dropout: 0.1; only allowed for heads: attending"),
    ("recurrent", {"num_layers": 0}, "heads_conf.num_layers: 0 is too small"),
    ("recurrent", {"num_heads": -1}, "heads_conf.num_heads: -1 is too small"),
    ("recurrent", {"layers": 2}, "heads_conf: unknown option 'layers'.*num_layers"),
    ("recurent", {}, "did you mean 'recurrent'"),
    ("hydra", {}, "allowed: none, linear, block, recurrent"),
)
def test_invalid_head_options_are_refused(heads, heads_conf):
    decoder_of(heads, **heads_conf)
