"""Whisper's decoder against transformers', branches and options."""

import pytest
import torch
from tiny import HIDDEN_SIZE, VOCAB_SIZE, random_memory, tiny_decoder
from tiny_whisper import save_tiny_whisper
from transformers import WhisperForConditionalGeneration

from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder

CLOSE = {"rtol": 0.0, "atol": 1e-5}


@pytest.fixture
def whole(tmp_path):
    """A tiny Whisper of transformers, saved in ``tmp_path``."""
    save_tiny_whisper(tmp_path, 60, hidden_size=HIDDEN_SIZE, max_target_positions=30)
    return WhisperForConditionalGeneration.from_pretrained(tmp_path).eval()


def test_forward_equals_transformers_decoder(whole):
    sizes = {"attention_heads": 2, "linear_units": 2 * HIDDEN_SIZE, "max_target_positions": 30}
    decoder = WhisperMedusaDecoder(60, HIDDEN_SIZE, num_blocks=2, **sizes).eval()
    decoder.whisper.load_state_dict(whole.model.decoder.state_dict())
    memory, lengths = random_memory(1, [20, 20])
    tokens = torch.randint(0, 60, (2, 7))
    expected = whole(encoder_outputs=(memory,), decoder_input_ids=tokens).logits
    result, _ = decoder(memory, lengths, tokens, torch.tensor([7, 7]))
    torch.testing.assert_close(result, expected, **CLOSE)


def test_hugging_face_folder_is_loaded(whole, tmp_path):
    decoder = WhisperMedusaDecoder(
        60, HIDDEN_SIZE, whisper_model=str(tmp_path), heads="block", heads_conf={"num_heads": 2}
    )
    last = whole.model.decoder.layers[-1].state_dict()
    for name, value in decoder.heads.block.state_dict().items():
        assert torch.equal(value, last[name]), name
    with pytest.raises(ValueError, match="token_list has 61 tokens.*60"):
        WhisperMedusaDecoder(61, HIDDEN_SIZE, whisper_model=str(tmp_path))
    with pytest.raises(ValueError, match="config.json"):
        WhisperMedusaDecoder(60, HIDDEN_SIZE, whisper_model=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "hydra"}, "allowed: none, linear, block, recurrent"),
        ({"heads": "blok"}, "did you mean 'block'"),
        ({"num_block": 2}, "unknown option 'num_block'.*did you mean 'num_blocks'"),
        ({"heads": "linear", "heads_conf": {"heads": 3}}, "heads_conf: unknown option 'heads'"),
        ({"heads": "linear", "heads_conf": {"num_heads": -1}}, "-1 is too small"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        WhisperMedusaDecoder(VOCAB_SIZE, HIDDEN_SIZE, attention_heads=4, **options)


@pytest.mark.parametrize("heads", ["none", "block", "llama none", "llama block"])
@torch.no_grad()
def test_branches_do_not_attend_to_each_other(heads):
    decoder = tiny_decoder(0, heads)
    memory, lengths = random_memory(0, [9, 4])
    tokens = torch.randint(0, VOCAB_SIZE, (2, 3, 5))
    together = decoder.hidden_states(memory, lengths, tokens.flatten(1), branches=3)
    for branch in range(3):
        alone = decoder.hidden_states(memory, lengths, tokens[:, branch])
        for result, expected in zip(together[:3], alone[:3], strict=True):
            torch.testing.assert_close(result[:, 5 * branch :][:, :5], expected, **CLOSE)
