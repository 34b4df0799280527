"""Whisper's modules against transformers': initial values, layers and dropout are bitwise equal."""

import torch
from cases import combinations
from transformers import WhisperConfig
from transformers.models.whisper import modeling_whisper

from espnet_medusa.networks import whisper_modules

SIZES = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "vocab_size": 50,
    "max_source_positions": 30, "max_target_positions": 20,
}  # fmt: skip
RATES = dict.fromkeys(["dropout", "attention_dropout", "activation_dropout"], 0.3)
UNUSED = dict.fromkeys(["pad_token_id", "bos_token_id", "eos_token_id"]) | {
    "decoder_start_token_id": 0
}


@combinations(training=[False, True], scale_embedding=[False, True])
@combinations(name=["WhisperEncoder", "WhisperDecoder"])
def test_modules_equal_those_of_transformers(name, scale_embedding, training):
    config = WhisperConfig(**SIZES, **RATES, **UNUSED, scale_embedding=scale_embedding)
    built = []
    for library in (modeling_whisper, whisper_modules):
        torch.manual_seed(1)
        built.append(getattr(library, name)(config).train(training))
    theirs, ours = built
    assert [*theirs.state_dict()] == [*ours.state_dict()]
    for expected, result in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert torch.equal(result, expected) and result.requires_grad == expected.requires_grad
    assert theirs.embed_scale == getattr(ours, "embed_scale", theirs.embed_scale)
    hidden, encoder_out = torch.randn(3, 7, 24), torch.randn(3, 5, 24)
    masks = torch.randn(3, 1, 7, 7), torch.randn(3, 1, 7, 5)
    for expected, result in zip(theirs.layers, ours.layers, strict=True):
        torch.manual_seed(2)
        cross = {"encoder_hidden_states": encoder_out, "encoder_attention_mask": masks[1]}
        known = expected(hidden, masks[0], **cross if name == "WhisperDecoder" else {})
        torch.manual_seed(2)
        cross = (encoder_out, masks[1]) if name == "WhisperDecoder" else ()
        assert torch.equal(result(hidden, masks[0], *cross), known)


def test_an_encoder_layer_in_float16_does_not_overflow():
    layer = whisper_modules.WhisperLayer(8, 2, 8, 0.0, cross_attention=False).half()
    torch.nn.init.constant_(layer.fc2.bias, 6e4)
    assert layer(torch.full((1, 3, 8), 6e4).half(), None).isfinite().all()
