"""``extend`` equals the teacher-forced forward of the trained module."""

import random

import grown_trees
import torch
from cases import cases, combinations
from grown_trees import CLOSE, Grown, branched, extend_chains, halve, relative_error, states_after
from tiny import HEADS, VOCAB_SIZE, random_encoder_out, tiny_decoder

from espnet_medusa.decoding.runtime import precision
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.tree.node_cache import FEWEST
from espnet_medusa.decoding.tree.token_tree import ROOT, chain_parents

ALL_HEADS = ["none", *HEADS, "llama none", "llama latent", "llama block"]


@combinations(heads=ALL_HEADS, seed=range(4))
def test_ragged_batches_equal_forward_of_each_path(heads, seed):
    """Utterances have different numbers of new and kept nodes, and leave the batch."""
    has_base_head = seed % 2 and heads in ("linear", "block")
    options = {"heads_conf": {"base_head": True}} if has_base_head else {}
    grown = Grown(tiny_decoder(seed, heads, **options), *random_encoder_out(seed, [8, 1, 5, 12]))
    grown_trees.grow_raggedly(random.Random(f"ragged {seed} {heads}"), grown)
    assert (grown.state.calls, grown.state.nodes) == (5, 46)
    assert len(grown.state.trees) == grown.state.cache.slots.size(1) == 1
    assert all(len(keys_values) == 1 for keys_values in grown.state.encoder_keys_values)


@combinations(heads=["linear", "block", "llama block"])
def test_one_new_node_per_utterance(heads):
    """A mask is needed only if the node must not attend to all earlier nodes."""
    grown = Grown(tiny_decoder(3, heads), *random_encoder_out(3, [6, 9]))
    grown.extend_and_check([[1], [2]], [[ROOT], [ROOT]])
    grown.extend_and_check([[3], [4]], [[0], [0]])
    # The second one must not attend to its sibling.
    grown.extend_and_check([[5], [6]], [[1], [0]])
    grown.extend_and_check([[7], [8]], [[2], [2]])


@cases(
    ("block", {"max_target_positions": 200}),
    ("llama block", {"llama_conf": {"max_position_embeddings": 210}}),
)
def test_the_cache_grows(heads, positions):
    grown = Grown(tiny_decoder(0, heads, **positions), *random_encoder_out(0, [4, 7]))
    for begin in range(0, 2 * FEWEST, 50):
        size = min(50, 200 - begin)
        tokens = torch.randint(0, VOCAB_SIZE, (2, size)).tolist()
        outputs, _ = grown.extend(tokens, [chain_parents(size, begin - 1, begin)] * 2)
    assert grown.state.cache.capacity > FEWEST
    for row, hidden in enumerate(outputs.hidden[size - 1 :: size]):
        expected, _ = grown.expected(row, [grown.state.num_nodes - 1])
        torch.testing.assert_close(hidden, expected[0], **CLOSE)


@combinations(heads=["block", "llama block"])
def test_the_block_is_not_computed_without_heads(heads):
    encoder_out, lengths = random_encoder_out(0, [5])
    runtime = build_runtime(tiny_decoder(0, heads))
    with_block, without = (
        runtime.start(encoder_out, lengths, with_heads=on) for on in (True, False)
    )
    if heads == "block":
        assert len(with_block.encoder_keys_values) == len(without.encoder_keys_values) + 1 == 3
    assert len(with_block.cache.slots) == len(without.cache.slots) + 1
    outputs = runtime.extend(without, [[1, 2]], [[ROOT, 0]])
    assert outputs.head_input is outputs.hidden
    expected = runtime.extend(with_block, [[1, 2]], [[ROOT, 0]])
    torch.testing.assert_close(outputs.hidden, expected.hidden, **CLOSE)


@combinations(heads=["block", "llama block", "llama latent", "llama projection"])
def test_a_runtime_keeps_its_weights(heads):
    decoder = tiny_decoder(0, heads)

    def parts():
        runtime = build_runtime(decoder)
        return runtime, runtime.proposer()

    def hidden(runtime, proposer):
        outputs = extend_chains(runtime, *random_encoder_out(0, [5]), torch.tensor([[1, 2]]))
        drafted = proposer.advance(proposer.start_from(outputs.head_input), torch.tensor([1, 2]))
        return torch.cat([outputs.hidden, outputs.head_input]), proposer.logits(drafted)

    built = parts()
    before = hidden(*built)
    for name, parameter in decoder.named_parameters():
        if "embed" not in name:  # the runtime uses the module's table
            parameter.mul_(1.5)
    assert all(map(torch.equal, hidden(*built), before))
    for after, expected in zip(hidden(*parts()), before, strict=True):
        assert not torch.allclose(after, expected, atol=1e-2)


@combinations(heads=[*HEADS, "llama latent", "llama projection"])
def test_bfloat16_stays_near_float32(heads):
    decoder, (encoder_out, lengths) = halve(tiny_decoder(0, heads)), random_encoder_out(0, [9, 4])
    found = []
    for name in (precision.BFLOAT16, precision.FLOAT32):
        runtime = build_runtime(decoder, name)
        outputs = branched(runtime, encoder_out, lengths)
        inputs = outputs.head_input, encoder_out, lengths, [0, 0, 1, 1, 1]
        proposer, states = states_after(runtime, *inputs)
        drafted = proposer.advance(states, torch.tensor([5, 1, 6, 7, 8]))
        logits = runtime.logits(outputs.hidden), proposer.logits(drafted)
        found.append((outputs.hidden, outputs.head_input, *logits))
    for close, exact in zip(*found, strict=True):
        assert close.dtype == torch.bfloat16 and exact.dtype == torch.float32
        assert 0 < relative_error(close, exact) < 0.05


def test_blocked_projection_of_a_large_vocabulary():
    for dtype, close in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        decoder = tiny_decoder(0, vocab_size=5000).to(dtype)
        (encoder_out, lengths), tokens = random_encoder_out(0, [5]), torch.tensor([[1, 4999, 2000]])
        encoder_out, runtime = encoder_out.to(dtype), build_runtime(decoder)
        expected, _ = decoder(encoder_out, lengths, tokens, torch.tensor([3]))
        logits = runtime.logits(extend_chains(runtime, encoder_out, lengths, tokens).hidden)
        torch.testing.assert_close(logits, expected[0], rtol=close, atol=10 * close)
