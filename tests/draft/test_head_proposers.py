"""Head proposers draft along a path with the logits of training."""

import pytest
import torch
from tiny import VOCAB_SIZE, random_memory, tiny_decoder

from espnet_medusa.runtime.build import build_runtime

CLOSE = {"rtol": 0.0, "atol": 1e-5}
NUM_HEADS = 4


@pytest.fixture(params=["linear", "block", "recurrent", "llama projection", "llama latent"])
def decoder(request):
    return tiny_decoder(0, request.param, NUM_HEADS)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("heads", "num_layers"),
    [
        *((heads, layers) for heads in ("linear", "block", "recurrent") for layers in (1, 2)),
        *((heads, 1) for heads in ("projection", "latent", "llama projection", "llama latent")),
    ],
)
def test_logits_along_a_path_are_the_unrolled_ones(heads, num_layers, seed):
    decoder = tiny_decoder(seed, heads, NUM_HEADS, heads_conf={"num_layers": num_layers})
    memory, lengths = random_memory(seed, [6, 3])
    tokens = torch.randint(0, VOCAB_SIZE, (2, 9))
    labels = torch.cat([tokens[:, 1:], torch.randint(0, VOCAB_SIZE, (2, 1))], dim=1)
    outputs = decoder.hidden_states(memory, lengths, tokens)
    unrolled = list(decoder.unroll_heads(outputs.head_input, labels))
    assert [part.size(1) for part in unrolled] == [8, 7, 6, 5]
    proposer = build_runtime(decoder).proposer()
    states = proposer.start_from(outputs.head_input.flatten(0, 1))
    places = [(row, position) for row in range(2) for position in range(9)]
    for step in range(1, NUM_HEADS + 1):
        # Prefixes near the end of their row have no label left; the others continue together.
        rows = [index for index, (_, position) in enumerate(places) if position + step < 9]
        states = states.select(torch.tensor(rows))
        places = [places[index] for index in rows]
        tokens = [int(labels[row, position + step - 1]) for row, position in places]
        states = proposer.advance(states, torch.tensor(tokens))
        expected = torch.stack([unrolled[step - 1][place] for place in places])
        torch.testing.assert_close(proposer.logits(states), expected, **CLOSE)


def random_head_inputs(decoder, count):
    return torch.randn(count, decoder.projection.size(1))


def states_of_paths(proposer, sources, paths):
    """Return the states of each path alone, after one token at a time."""
    result = []
    for source, tokens in zip(sources, paths, strict=True):
        states = proposer.start_from(source[None])
        for token in tokens:
            states = proposer.advance(states, torch.tensor([token]))
        result.append(states)
    return result


@torch.no_grad()
def test_states_of_different_depths_are_joined(decoder):
    proposer = build_runtime(decoder).proposer()
    sources, paths = random_head_inputs(decoder, 3), [[3], [5, 1, 2], [4, 0]]
    singles = states_of_paths(proposer, sources, paths)
    expected = torch.cat([proposer.logits(states) for states in singles])
    together = singles[0].join(singles[1]).join(singles[2])
    torch.testing.assert_close(proposer.logits(together), expected, **CLOSE)
    longer = proposer.advance(together, torch.tensor([7, 8, 9]))
    expected_states = states_of_paths(proposer, sources, [[3, 7], [5, 1, 2, 8], [4, 0, 9]])
    expected = torch.cat([proposer.logits(states) for states in expected_states])
    torch.testing.assert_close(proposer.logits(longer), expected, **CLOSE)


@torch.no_grad()
def test_rows_are_selected_in_any_order_and_several_times(decoder):
    proposer = build_runtime(decoder).proposer()
    singles = states_of_paths(proposer, random_head_inputs(decoder, 3), [[3], [5, 1], [4, 0, 2]])
    joined = singles[0].join(singles[1].join(singles[2]))
    every = proposer.logits(joined)
    rows = torch.tensor([2, 0, 0, 1, 2])
    chosen = joined.select(rows)
    torch.testing.assert_close(proposer.logits(chosen), every[rows], **CLOSE)
    assert torch.equal(proposer.logits(joined), every), "selection does not change the source"
    # Selected and joined states can be advanced.
    again = chosen.select(torch.tensor([3])).join(joined.select(torch.tensor([1])))
    first, second = proposer.logits(proposer.advance(again, torch.tensor([6, 6])))
    torch.testing.assert_close(first, second, **CLOSE)


@torch.no_grad()
def test_only_recurrent_heads_depend_on_drafted_tokens(decoder):
    proposer = build_runtime(decoder).proposer()
    states = proposer.start_from(random_head_inputs(decoder, 1)).select(torch.tensor([0, 0]))
    first, second = proposer.logits(proposer.advance(states, torch.tensor([2, 3])))
    recurrent = proposer.max_steps is None
    assert torch.allclose(first, second, **CLOSE) != recurrent


@torch.no_grad()
def test_largest_number_of_steps(decoder):
    proposer = build_runtime(decoder).proposer()
    states = proposer.start_from(random_head_inputs(decoder, 1))
    for step in range(1, NUM_HEADS + 3):
        states = proposer.advance(states, torch.tensor([2]))
        if proposer.max_steps is None or step <= proposer.max_steps:
            assert proposer.logits(states).shape == (1, VOCAB_SIZE)
        else:
            assert proposer.max_steps == NUM_HEADS
            with pytest.raises(IndexError):
                proposer.logits(states)


def test_token_ids_of_columns():
    proposer = build_runtime(tiny_decoder(0, "linear")).proposer()
    assert proposer.token_ids(torch.tensor([[3, 0]])).tolist() == [[3, 0]]
    proposer.vocabulary = torch.tensor([5, 2, 10, 7])
    assert proposer.token_ids(torch.tensor([[3, 0]])).tolist() == [[7, 5]]


def test_no_heads_no_proposer():
    assert build_runtime(tiny_decoder(0, "none")).proposer() is None
