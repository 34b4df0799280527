"""Head proposers draft along a path with the logits of training."""

import math

import pytest
import torch
from cases import combinations, pairs
from grown_trees import CLOSE, best_tokens_of_steps, relative_error, states_after
from kernel_kinds import KINDS, with_kernels
from tiny import HIDDEN_SIZE, VOCAB_SIZE, random_encoder_out, tiny_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.cross_attention import WhisperRuntime
from espnet_medusa.decoding.runtime.cuda_graph import CudaGraphWhisperRuntime
from espnet_medusa.decoding.runtime.native import shortlist
from espnet_medusa.decoding.runtime.native.operations import NativeLinear
from espnet_medusa.decoding.runtime.precision import decoder_precision
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import DraftContext

NUM_HEADS = 4


def teacher_forced(decoder, seed, frames):
    """Return memory, lengths, labels (B, L), hidden states and logits along the labels."""
    encoder_out, lengths = random_encoder_out(seed, frames)
    tokens = torch.randint(0, VOCAB_SIZE, (len(frames), 9))
    labels = torch.cat([tokens[:, 1:], torch.randint(0, VOCAB_SIZE, (len(frames), 1))], dim=1)
    outputs = decoder.hidden_states(encoder_out, lengths, tokens)
    unrolled = [*decoder.unroll_heads(outputs, labels)]
    return encoder_out, lengths, labels, outputs, unrolled


@combinations(seed=range(3))
def test_a_step_attends_as_the_last_layer_does(seed):
    """All positions at once equal the layer's modules at one position after another."""
    decoder = tiny_decoder(seed, "attending", NUM_HEADS)
    encoder_out, lengths, labels, outputs, unrolled = teacher_forced(decoder, seed, [6, 3])
    heads, layer = decoder.heads, decoder.heads.layer
    whole = decoder.layers[-1].encoder_attn
    whole.q_proj, whole.out_proj = layer.encoder_attn.q_proj, layer.encoder_attn.out_proj
    embeddings = decoder.whisper.embed_tokens.weight
    for row, frames in enumerate(lengths.tolist()):
        for position in range(9 - NUM_HEADS):
            state = outputs.hidden[row, position]
            for step in range(NUM_HEADS):
                state = heads.state_norm(state)
                token = heads.token_norm(embeddings[labels[row, position + step]])
                hidden = (state + heads.fuse(torch.cat([state, token])))[None, None]
                read = layer.encoder_attn_layer_norm(hidden)
                hidden = hidden + whole(read, encoder_out[row : row + 1, :frames], None)
                read = layer.final_layer_norm(hidden)
                hidden = hidden + layer.fc2(torch.nn.functional.gelu(layer.fc1(read)))
                state = hidden[0, 0]
                expected = heads.norm(state) @ embeddings.T
                torch.testing.assert_close(unrolled[step][row, position], expected, **CLOSE)


HEADS = ["linear", "block", "recurrent", "llama projection", "llama latent", "attending"]
CASES = [(heads, layers, "float32") for heads in HEADS[:3] for layers in (1, 2)]
CASES += [(heads, None, "float32") for heads in ("projection", "latent", *HEADS[3:])]
CASES += [("attending", None, "int8")]


@pytest.mark.parametrize(("seed", "frames"), enumerate([[6, 3], [5], [40, 1, 40]]))
@pytest.mark.parametrize(("heads", "num_layers", "precision"), CASES)
def test_drafts_along_a_path_are_the_unrolled_ones(heads, num_layers, precision, seed, frames):
    layers = {"num_layers": num_layers} if num_layers else {}
    decoder = tiny_decoder(seed, heads, NUM_HEADS, heads_conf=layers)
    encoder_out, lengths, labels, outputs, unrolled = teacher_forced(decoder, seed, frames)
    assert [part.size(1) for part in unrolled] == [8, 7, 6, 5]
    places = [(row, position) for position in range(9) for row in range(len(frames))]
    places = [places[at] for at in torch.randperm(len(places))]
    inputs = torch.stack([outputs.head_input[place] for place in places])
    inputs, runtime = (inputs, encoder_out, lengths), build_runtime(decoder, precision)
    rows = [row for row, _ in places]
    proposer, states = states_after(runtime, *inputs, rows, precision=precision)
    for step in range(1, NUM_HEADS + 1):
        # Prefixes near the end of their row have no label left; the others continue together.
        rows = [index for index, (_, position) in enumerate(places) if position + step < 9]
        states = states.select(torch.tensor(rows))
        places = [places[index] for index in rows]
        tokens = [int(labels[row, position + step - 1]) for row, position in places]
        states = proposer.advance(states, torch.tensor(tokens))
        expected = torch.stack([unrolled[step - 1][place] for place in places])
        result = proposer.logits(states)
        if precision == "float32":
            torch.testing.assert_close(result, expected, **CLOSE)
        else:
            assert (result - expected).norm() / expected.norm() < 0.06


@pytest.fixture(params=HEADS)
def begun(request):
    """A proposer begun for two utterances, and three states after random head inputs."""
    decoder = tiny_decoder(0, request.param, NUM_HEADS)
    inputs = torch.randn(3, decoder.projection.size(1)), *random_encoder_out(2, [7, 4]), [0, 1, 1]
    return states_after(build_runtime(decoder), *inputs)


def states_of_paths(proposer, begun, paths):
    result = []
    for row, tokens in enumerate(paths):
        states = begun.select(torch.tensor([row]))
        for token in tokens:
            states = proposer.advance(states, torch.tensor([token]))
        result.append(states)
    return result


def test_states_of_different_depths_are_joined(begun):
    proposer, _ = begun
    singles = states_of_paths(*begun, [[3], [5, 1, 2], [4, 0]])
    expected = torch.cat([proposer.logits(states) for states in singles])
    together = singles[0].join(singles[1]).join(singles[2])
    torch.testing.assert_close(proposer.logits(together), expected, **CLOSE)
    longer = proposer.advance(together, torch.tensor([7, 8, 9]))
    singles = states_of_paths(*begun, [[3, 7], [5, 1, 2, 8], [4, 0, 9]])
    expected = torch.cat([proposer.logits(states) for states in singles])
    torch.testing.assert_close(proposer.logits(longer), expected, **CLOSE)


def test_rows_are_selected_in_any_order_and_several_times(begun):
    proposer, _ = begun
    singles = states_of_paths(*begun, [[3], [5, 1], [4, 0, 2]])
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


def test_largest_number_of_steps(begun):
    proposer, states = begun
    states = states.select(torch.tensor([0]))
    for step in range(1, NUM_HEADS + 3):
        states = proposer.advance(states, torch.tensor([2]))
        if proposer.max_steps is None or step <= proposer.max_steps:
            assert proposer.logits(states).shape == (1, VOCAB_SIZE)
        else:
            assert proposer.max_steps == NUM_HEADS
            with pytest.raises(IndexError):
                proposer.logits(states)


@with_kernels
@pairs(
    kind=KINDS, precision=["float32", "bfloat16", "int8"], seed=range(6),
    vocabulary=[None, [0, 2, 3, 5, 8]], least=[-math.inf, -3.0], indirect=["kind"],
)  # fmt: skip
def test_a_chain_is_the_best_token_of_each_step(kind, precision, seed, vocabulary, least):
    """Utterances have two, one or no rows, and audio of different lengths."""
    decoder = tiny_decoder(seed, "attending", NUM_HEADS)
    drafts = [0, 0, 2, 3], vocabulary and torch.tensor(vocabulary), "int8"
    inputs = torch.randn(4, HIDDEN_SIZE), *random_encoder_out(seed, [6, 3, 9, 1]), *drafts
    proposer, states = states_after(build_runtime(decoder, precision), *inputs)
    depth = 6
    tokens = proposer.chain(states, depth, least)
    expected, margins = best_tokens_of_steps(proposer, states, depth, least)
    # The chain's embeddings are 8-bit, which may change the best token at a near tie.
    clear = margins > (1e-4 if precision == "int8" else 0.1)
    certain = clear.cummin(dim=1).values
    assert certain[:, 0].any() and certain.float().mean() > 0.3
    assert torch.equal(tokens[certain], expected[certain])
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(proposer.chain(states.select(order), depth, least), tokens[order])
    for row in range(4):
        alone = proposer.chain(states.select(torch.tensor([row])), depth, least)
        assert torch.equal(alone[0], tokens[row])


@with_kernels
@combinations(seed=range(3), size=[290, 320])
def test_a_chain_with_a_shortlist_finds_the_best_of_all_tokens(kind, seed, size, monkeypatch):
    """Of 10 panels of columns, 3 get exact logits; the last panel is full or has 2 columns."""
    monkeypatch.setattr(shortlist, "BITS", 8)
    monkeypatch.setattr(shortlist, "PANELS", 3)
    monkeypatch.setattr(shortlist, "LEAST_COLUMNS", 290)
    decoder = tiny_decoder(seed, "attending", NUM_HEADS, vocab_size=size)
    inputs = torch.randn(4, HIDDEN_SIZE), *random_encoder_out(seed, [6, 3, 9, 1])
    proposer, states = states_after(
        build_runtime(decoder, "int8"), *inputs, [0, 0, 2, 3], precision="int8"
    )
    assert proposer.heads.shortlist is not None
    tokens, depth = torch.tensor([5, size - 1, 64, 0]), 6
    drafts = proposer.chain(states, depth, -math.inf, tokens)
    advanced = proposer.advance(states, tokens)
    assert torch.equal(drafts, proposer.chain(advanced, depth, -math.inf))
    expected, margins = best_tokens_of_steps(proposer, advanced, depth)
    certain = (margins > 0.05).cummin(dim=1).values  # more than the approximate logits' error
    assert certain[:, 0].any() and certain.float().mean() > 0.3
    assert torch.equal(drafts[certain], expected[certain])


@with_kernels
@combinations(size=[290, 320])
def test_a_chain_picks_the_best_column_of_the_panels_with_the_best_approximations(
    kind, size, monkeypatch
):
    """Of 10 panels, 2 are selected; with 4 bits, these often lack the best of all columns."""
    monkeypatch.setattr(shortlist, "PANELS", 2)
    monkeypatch.setattr(shortlist, "LEAST_COLUMNS", 290)
    decoder = tiny_decoder(4, "attending", NUM_HEADS, vocab_size=size)
    inputs = torch.randn(40, HIDDEN_SIZE), *random_encoder_out(4, [6])
    runtime = build_runtime(decoder, "int8")
    proposer, states = states_after(runtime, *inputs, [0] * 40, precision="int8")
    low_rank = proposer.heads.shortlist
    approximate = low_rank.scores(low_rank.reduce(proposer.heads.norm(states.hidden)))
    approximate = torch.nn.functional.pad(approximate, (0, -size % 32), value=-math.inf)
    maxima, panels = approximate.view(40, 10, 32).amax(dim=2).sort(dim=1, descending=True)
    clear = maxima[:, 1] - maxima[:, 2] > 0.05  # more than the rounding of the norm's output
    chosen = torch.zeros(40, 10).scatter(1, panels[:, :2], 1).repeat_interleave(32, dim=1)
    logits = proposer.logits(states).masked_fill(chosen[:, :size] == 0, -math.inf)
    best = proposer.chain(states, 1, -math.inf)
    assert clear.float().mean() > 0.5
    assert torch.equal(best[clear, 0], logits.argmax(dim=1)[clear])
    assert not torch.equal(best[clear, 0], proposer.logits(states).argmax(dim=1)[clear])


@with_kernels
def test_a_shortlist_is_built_after_the_module_has_freed_its_weights(kind, monkeypatch):
    monkeypatch.setattr(shortlist, "PANELS", 3)
    monkeypatch.setattr(shortlist, "LEAST_COLUMNS", 290)
    drafts = []
    for release in (False, True):
        decoder = tiny_decoder(0, "attending", NUM_HEADS, vocab_size=320)
        hidden = torch.randn(1, HIDDEN_SIZE, generator=torch.Generator().manual_seed(0))
        inputs = hidden, *random_encoder_out(0, [6])
        proposer, states = states_after(build_runtime(decoder, "int8"), *inputs, precision="int8")
        if release:
            decoder.release()
            assert not len(decoder.heads.norm.weight)
        drafts.append(proposer.chain(states, 4, -math.inf))
    assert proposer.heads.shortlist is not None and torch.equal(*drafts)


def centered(logits):
    """Approximate logits lack a number per row, because a ranking does not depend on it."""
    return logits - logits.mean(dim=1, keepdim=True)


@with_kernels
def test_a_shortlist_approximates_a_projection_of_its_rank(kind, monkeypatch):
    monkeypatch.setattr(shortlist, "BITS", 8)
    generator = torch.Generator().manual_seed(1)
    left, right, hidden = (
        torch.randn(*shape, generator=generator) for shape in ((900, 60), (60, 256), (40, 256))
    )
    size = 0.2 + torch.rand(256, generator=generator)
    projection = NativeLinear(left @ right, None)
    norm = torch.nn.LayerNorm(256)
    norm.weight.data, norm.bias.data = size, torch.randn(256, generator=generator)
    low_rank = shortlist.Shortlist(projection, norm, torch.zeros(256, 256))
    assert low_rank.reduce.outputs == 64, "rank: a quarter of 256"
    hidden = hidden * size + norm.bias
    approximate = low_rank.scores(low_rank.reduce(hidden))
    assert relative_error(approximate, centered(projection(hidden))) < 0.03


@with_kernels
def test_a_shortlist_is_better_with_the_moments_of_the_heads(kind, monkeypatch):
    """The outputs vary in 40 directions, and the projection has full rank."""
    monkeypatch.setattr(shortlist, "BITS", 8)
    heads = tiny_decoder(0, "attending", 2).heads
    norm = heads.norm = torch.nn.LayerNorm(256)
    heads.moments = torch.zeros(256, 256)
    generator = torch.Generator().manual_seed(1)
    norm.bias.data = torch.randn(256, generator=generator)
    directions = torch.randn(40, 256, generator=generator)
    outputs = torch.randn(600, 40, generator=generator) @ directions + norm.bias
    projection = NativeLinear(torch.randn(900, 256, generator=generator), None)

    def error() -> float:
        low_rank = shortlist.Shortlist(projection, norm, heads.moments)
        approximate = low_rank.scores(low_rank.reduce(outputs[:100]))
        return relative_error(approximate, centered(projection(outputs[:100])))

    assert error() > 0.2, "values are assumed to be uncorrelated"
    heads.observe([outputs[100:200], outputs[200:300]])
    heads.observe([outputs[300:]])
    parts = [part - norm.bias for part in (outputs[100:300], outputs[300:])]
    first, second = (part.T @ part * 256 / part.square().sum() for part in parts)
    torch.testing.assert_close(heads.moments, 0.99 * first + 0.01 * second)
    heads.observe([outputs[:0]])
    assert error() < 0.05


@combinations(
    kind=["linear", "block"], precision=["float32", "int8"], vocabulary=[None, [0, 2, 3, 5, 8]]
)
@combinations(least=[-math.inf, -3.0])
def test_a_chain_of_parallel_heads_is_the_best_token_of_each(kind, precision, vocabulary, least):
    decoder = tiny_decoder(0, kind, NUM_HEADS)
    drafts = [0, 0, 1], vocabulary and torch.tensor(vocabulary), "int8"
    inputs = torch.randn(3, HIDDEN_SIZE), *random_encoder_out(0, [6, 3]), *drafts
    proposer, states = states_after(build_runtime(decoder, precision), *inputs)
    states = proposer.advance(states, torch.tensor([3, 1, 2]))
    for depth in range(1, NUM_HEADS + 1):
        expected, _ = best_tokens_of_steps(proposer, states, depth, least)
        assert torch.equal(proposer.chain(states, depth, least), expected)
    later = proposer.advance(states, torch.tensor([0, 0, 0]))
    expected, _ = best_tokens_of_steps(proposer, later, NUM_HEADS - 1, least)
    assert torch.equal(proposer.chain(later, NUM_HEADS - 1, least), expected)
    both = proposer.chain(states.join(later), NUM_HEADS - 1, least)
    first, _ = best_tokens_of_steps(proposer, states, NUM_HEADS - 1, least)
    assert torch.equal(both, torch.cat([first, expected])), "states of different steps"


@combinations(kind=[WhisperRuntime, CudaGraphWhisperRuntime], precision=["float32", "int8"])
def test_cross_attention_keys_remain_when_utterances_leave(kind, precision):
    """The heads attend to the decoder's keys and values after its state has changed."""
    if kind is CudaGraphWhisperRuntime and precision == "int8":
        pytest.skip("CUDA graphs are for GPUs, int8 is for CPUs")
    decoder = tiny_decoder(2, "attending", NUM_HEADS)
    runtime = kind(decoder, decoder_precision(precision, torch.device("cpu"), torch.float32))
    encoder_out, lengths = random_encoder_out(2, [7, 4, 40, 12])
    roots = [Prefix(0) for _ in encoder_out]
    state = runtime.start(encoder_out, lengths)
    context = DraftContext(roots, encoder_out.device, cross_keys_values=state.cross_keys_values)
    proposer = runtime.proposer().begin(context)
    for root in roots:
        root.head_input = torch.randn(1, HIDDEN_SIZE), 0
    tokens = torch.tensor([3, 5, 1, 2])
    states = proposer.start(roots)
    before = proposer.logits(proposer.advance(states, tokens))
    assert not torch.allclose(before[0], before[1], **CLOSE)
    for remaining in ([1, 2, 3], [1, 2], [1]):
        runtime.select(state, remaining)
        assert torch.equal(proposer.logits(proposer.advance(states, tokens)), before)


@combinations(heads=["linear", "block", "attending", "none"])
def test_only_attending_heads_receive_cross_attention_keys(heads):
    audio, runtime = random_encoder_out(0, [5]), build_runtime(tiny_decoder(0, heads))
    assert (runtime.proposer() is None) == (heads == "none")
    state = runtime.start(*audio)
    assert (state.cross_keys_values is not None) == (heads == "attending")
    if state.cross_keys_values is not None:
        assert state.cross_keys_values.keys_values is state.encoder_keys_values[-1], "not a copy"
    assert runtime.start(*audio, with_heads=False).cross_keys_values is None


def test_token_ids_of_columns():
    proposer = build_runtime(tiny_decoder(0, "linear")).proposer()
    assert proposer.token_ids(torch.tensor([[3, 0]])).tolist() == [[3, 0]]
    proposer.vocabulary = torch.tensor([5, 2, 10, 7])
    assert proposer.token_ids(torch.tensor([[3, 0]])).tolist() == [[7, 5]]
