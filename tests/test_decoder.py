"""Invariant 2: the token tree equals the teacher-forced forward of the trained module."""

import random

import pytest
import torch
from tiny import HIDDEN_SIZE, VOCAB_SIZE, random_memory, tiny_decoder
from transformers import WhisperConfig, WhisperForConditionalGeneration

from espnet_medusa.decoder.whisper import WhisperMedusaDecoder
from espnet_medusa.tree import DEAD, ROOT, chain_parents

CLOSE = {"rtol": 0.0, "atol": 1e-5}


@pytest.mark.parametrize("heads", ["none", "linear", "block", "recurrent"])
@pytest.mark.parametrize("seed", range(3))
def test_chain_in_pieces_equals_forward(heads, seed):
    decoder = tiny_decoder(seed, heads)
    memory, lengths = random_memory(seed, [9, 4, 1])
    tokens = torch.randint(0, VOCAB_SIZE, (3, 12))
    expected = decoder.hidden_states(memory, lengths, tokens)
    state = decoder.start(memory, lengths)
    begin = 0
    for size in (1, 5, 2, 4):
        last = torch.full((3,), begin - 1)
        found = decoder.extend(
            state, tokens[:, begin : begin + size], chain_parents(3, size, last, begin)
        )
        part = slice(begin, begin + size)
        torch.testing.assert_close(found.hidden, expected.hidden[:, part], **CLOSE)
        torch.testing.assert_close(found.head_input, expected.head_input[:, part], **CLOSE)
        begin += size


@pytest.mark.parametrize("heads", ["linear", "block", "recurrent"])
@pytest.mark.parametrize("seed", range(8))
def test_branching_tree_with_keep_equals_forward_of_each_path(heads, seed):
    rng = random.Random(seed)
    decoder = tiny_decoder(seed, heads)
    memory, lengths = random_memory(seed, [8, 5])
    state = decoder.start(memory, lengths)
    for step in range(4):
        num_old, num_new = state.tree.num_nodes, rng.randint(1, 7)
        least = ROOT if step == 0 else 0
        parents = [[rng.randint(least, num_old + t - 1) for t in range(num_new)] for _ in range(2)]
        tokens = torch.randint(0, VOCAB_SIZE, (2, num_new))
        found = decoder.extend(state, tokens, torch.tensor(parents))
        for row in range(2):
            for new in range(num_new):
                path = state.tree.path(row, num_old + new)
                alone = memory[row : row + 1, : lengths[row]]
                expected = decoder.hidden_states(
                    alone, lengths[row : row + 1], state.tree.tokens[row, path][None]
                )
                torch.testing.assert_close(found.hidden[row, new], expected.hidden[0, -1], **CLOSE)
                torch.testing.assert_close(
                    found.head_input[row, new], expected.head_input[0, -1], **CLOSE
                )
        decoder.keep(state, random_subtrees(state, rng))


def random_subtrees(state, rng) -> torch.Tensor:
    """Some paths of each row, padded: what searches keep."""
    kept = []
    for row in range(state.tree.tokens.size(0)):
        nodes = set()
        alive = [n for n in range(state.tree.num_nodes) if state.tree.visible[row, n, n]]
        for node in rng.sample(alive, min(2, len(alive))):
            nodes |= set(state.tree.path(row, node))
        kept.append(sorted(nodes))
    width = max(map(len, kept))
    return torch.tensor([nodes + [DEAD] * (width - len(nodes)) for nodes in kept])


def test_keep_drops_the_same_nodes_from_tree_and_cache():
    decoder = tiny_decoder(0)
    memory, lengths = random_memory(0, [3])
    state = decoder.start(memory, lengths)
    decoder.extend(state, torch.zeros(1, 3, dtype=torch.long), torch.tensor([[ROOT, 0, 0]]))
    decoder.keep(state, torch.tensor([[0, 2]]))
    assert state.cache.num_nodes == state.tree.num_nodes == 2
    assert state.tree.path(0, 1) == [0, 1]


def test_forward_equals_transformers_own_decoder():
    config = WhisperConfig(
        vocab_size=60, d_model=HIDDEN_SIZE, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, max_source_positions=20, max_target_positions=30,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
    )  # fmt: skip
    torch.manual_seed(0)
    whole = WhisperForConditionalGeneration(config).eval()
    decoder = WhisperMedusaDecoder(
        60, HIDDEN_SIZE, num_blocks=2, attention_heads=4, linear_units=48, max_target_positions=30
    ).eval()
    decoder.whisper.load_state_dict(whole.model.decoder.state_dict())
    memory, lengths = random_memory(1, [20, 20])
    tokens = torch.randint(0, 60, (2, 7))
    expected = whole(encoder_outputs=(memory,), decoder_input_ids=tokens).logits
    found, _ = decoder(memory, lengths, tokens, torch.tensor([7, 7]))
    torch.testing.assert_close(found, expected, **CLOSE)


def test_hugging_face_folder_is_loaded(tmp_path):
    config = WhisperConfig(
        vocab_size=60, d_model=HIDDEN_SIZE, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=3,
    )  # fmt: skip
    whole = WhisperForConditionalGeneration(config)
    whole.save_pretrained(tmp_path)
    decoder = WhisperMedusaDecoder(
        60, HIDDEN_SIZE, whisper_model=str(tmp_path), heads="block", heads_conf={"num_heads": 2}
    )
    last = whole.model.decoder.layers[-1].state_dict()
    for name, value in decoder.heads.block.state_dict().items():
        assert torch.equal(value, last[name]), name
    with pytest.raises(ValueError, match="token_list has 61 tokens.*60"):
        WhisperMedusaDecoder(61, HIDDEN_SIZE, whisper_model=str(tmp_path))
    with pytest.raises(ValueError, match="holds no config.json"):
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
def test_bad_options_say_what_is_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        WhisperMedusaDecoder(VOCAB_SIZE, HIDDEN_SIZE, attention_heads=4, **options)
