"""Surrogates of heads draft along a path what training predicted for its tokens."""

import pytest
import torch
from tiny import VOCAB_SIZE, random_memory, tiny_decoder

from espnet_medusa.prefix import Prefix

CLOSE = {"rtol": 0.0, "atol": 1e-5}
NUM_HEADS = 4


def evaluated(head_input: torch.Tensor, token: int) -> Prefix:
    return Prefix(token, slot=0, head_input=head_input)


@pytest.fixture(params=["linear", "block", "recurrent"])
def decoder(request):
    return tiny_decoder(0, request.param, NUM_HEADS)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
def test_logits_along_a_path_are_the_unrolled_ones(decoder, seed):
    torch.manual_seed(seed)
    memory, lengths = random_memory(seed, [6, 3])
    tokens = torch.randint(0, VOCAB_SIZE, (2, 9))
    labels = torch.cat([tokens[:, 1:], torch.randint(0, VOCAB_SIZE, (2, 1))], dim=1)
    outputs = decoder.hidden_states(memory, lengths, tokens)
    unrolled = list(decoder.unroll_heads(outputs.head_input, labels))
    assert [part.size(1) for part in unrolled] == [8, 7, 6, 5]
    surrogate = decoder.surrogate()
    places = [(row, position) for row in range(2) for position in range(9)]
    states = surrogate.start(
        [evaluated(outputs.head_input[place], int(tokens[place])) for place in places]
    )
    for step in range(1, NUM_HEADS + 1):
        # Prefixes near the end of their row have no label left; the others go on together.
        states = [s for s, (_, t) in zip(states, places, strict=True) if t + step < 9]
        places = [(row, position) for row, position in places if position + step < 9]
        read = [int(labels[row, position + step - 1]) for row, position in places]
        states = surrogate.advance(states, read)
        expected = torch.stack([unrolled[step - 1][place] for place in places])
        torch.testing.assert_close(surrogate.logits(states), expected, **CLOSE)


@torch.no_grad()
def test_states_of_several_ages_go_together(decoder):
    surrogate = decoder.surrogate()
    first, second = surrogate.start([evaluated(torch.randn(32), 1), evaluated(torch.randn(32), 2)])
    [first] = surrogate.advance([first], [3])
    together = surrogate.advance([first, second], [4, 5])
    alone = [surrogate.advance([first], [4])[0], surrogate.advance([second], [5])[0]]
    expected = torch.cat([surrogate.logits([state]) for state in alone])
    torch.testing.assert_close(surrogate.logits(together), expected, **CLOSE)


@torch.no_grad()
def test_only_recurrent_heads_see_what_was_drafted(decoder):
    surrogate = decoder.surrogate()
    [state] = surrogate.start([evaluated(torch.randn(32), 1)])
    one, other = surrogate.logits(surrogate.advance([state, state], [2, 3]))
    recurrent = surrogate.max_steps is None
    assert torch.equal(one, other) != recurrent


@torch.no_grad()
def test_how_far_a_state_goes(decoder):
    surrogate = decoder.surrogate()
    states = surrogate.start([evaluated(torch.randn(32), 1)])
    for _ in range(NUM_HEADS + 3):
        states = surrogate.advance(states, [2])
    if surrogate.max_steps is None:
        assert surrogate.logits(states).shape == (1, VOCAB_SIZE)
    else:
        assert surrogate.max_steps == NUM_HEADS
        with pytest.raises(AssertionError):
            surrogate.logits(states)


def test_no_heads_no_surrogate():
    assert tiny_decoder(0, "none").surrogate() is None
