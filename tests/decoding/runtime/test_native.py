"""Native kernels: products, layers, decoders and searches, for every instruction set."""

import random

import numpy as np
import torch
from cases import cases, combinations, pairs
from grown_trees import Grown, branched, halve, random_nodes, relative_error, some_subtrees
from kernel_kinds import KINDS, attends_in_integers, rounded, running, some_threads, with_kernels
from searches import build_search, run_search
from tiny import random_encoder_out, tiny_decoder, tiny_encoder

from espnet_medusa.decoding.runtime import precision
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.cross_attention import whisper_weights
from espnet_medusa.decoding.runtime.encoder import build_encoder_runtime
from espnet_medusa.decoding.runtime.layer import LayerStack, NewNodes, PackedLayer, Packing
from espnet_medusa.decoding.runtime.linear import ACTIVATIONS
from espnet_medusa.decoding.runtime.native.operations import NativeLinear
from espnet_medusa.decoding.runtime.native_decoder import NativeLayer, NativeStack
from espnet_medusa.decoding.search.search_options import SearchOptions
from espnet_medusa.decoding.tree.token_tree import ROOT
from espnet_medusa.networks.masks import padding_mask
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder

SIZES = [(384, 1536), (512, 51), (160, 640), (640, 160), (40, 33), (1, 7), (65, 129)]  # D, M

pytestmark = with_kernels


@pairs(
    kind=KINDS, sizes=SIZES, activation=[None, *ACTIVATIONS], bits=[8, 4], indirect=["kind"]
)  # fmt: skip
def test_products_equal_those_of_rounded_rows_and_weights(kind, sizes, activation, bits):
    size, out = sizes
    generator = torch.Generator().manual_seed(size)
    weight = torch.randn(out, size, generator=generator) / size**0.5
    bias = torch.randn(out, generator=generator) if activation else None
    linear = NativeLinear(weight, bias, activation, bits)
    rounded_weight = rounded(weight, {8: 127, 4: 7}[bits])
    if bits == 8:
        assert torch.allclose(linear.rows(torch.arange(out)).double(), rounded_weight, atol=1e-6)
    for rows in (1, 2, 11, 16, 17, 32, 40):
        hidden = torch.randn(rows, size, generator=generator)
        residual = torch.randn(rows, out, generator=generator)
        expected = rounded(hidden) @ rounded_weight.T
        exact = hidden.double() @ weight.double().T
        if activation:
            expected = ACTIVATIONS[activation](expected + bias.double())
            exact = ACTIVATIONS[activation](exact + bias.double())
        near = dict(rtol=0.0, atol=2e-5)
        torch.testing.assert_close(linear(hidden).double(), expected, **near)
        torch.testing.assert_close(linear(hidden, residual).double(), expected + residual, **near)
        assert relative_error(expected, exact) < {8: 0.02, 4: 0.3}[bits]
        assert torch.equal(linear(hidden)[-1:], linear(hidden[-1:])), "independent of other rows"


def test_zeros_and_large_numbers_stay_finite(kind):
    weight = torch.randn(40, 70)
    weight[2] = 0
    for activation in (None, *ACTIVATIONS):
        linear = NativeLinear(weight, None, activation)
        product = linear(torch.stack([torch.zeros(70), torch.full((70,), 1e6), torch.ones(70)]))
        assert torch.isfinite(product).all() and not product[0].any() and not product[:, 2].any()
        assert linear(torch.zeros(0, 70)).shape == (0, 40)


def test_sums_of_the_largest_integers_do_not_overflow(kind):
    """Not even two of their products fit in 16 bits."""
    generator = torch.Generator().manual_seed(0)
    weight, hidden = (torch.randn(rows, 640, generator=generator).sign() for rows in (70, 13))
    hidden[0], weight[0], weight[1] = 1, 1, -1
    torch.testing.assert_close(NativeLinear(weight, None)(hidden), hidden @ weight.T)


def layer_of(heads: int, head_size: int) -> torch.nn.Module:
    """A layer with large random weights, so that attention matters."""
    torch.manual_seed(head_size)
    size = heads * head_size
    sizes = {"num_blocks": 1, "attention_heads": heads, "linear_units": 3 * size}
    layer = WhisperMedusaDecoder(10, size, **sizes).layers[0]
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=1.5 / size**0.5 if parameter.dim() == 2 else 0.5)
    return layer.eval()


class StateWithNodes:
    """A decoder state, and its own cache, with random keys and values of ``known`` nodes."""

    def __init__(self, layers, encoder_out, lengths, known):
        layer = layers[0]
        shape = (1, len(encoder_out), known + 64, 2, layer.num_heads, layer.head_size)
        self.cache = self
        self.slots = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        self.num_nodes = known
        self.encoder_keys_values = [layer.project_encoder_out(encoder_out)]
        self.encoder_out_mask = padding_mask(encoder_out, lengths)

    def write(self, layer, keys_values):
        end = self.num_nodes + keys_values.size(1)
        self.slots[layer][:, self.num_nodes : end] = keys_values
        return self.slots[layer][:, :end]


@cases(
    (2, 64, 40, [11], [150]), (4, 40, 0, [3, 1, 33], [33, 64, 1]), (3, 8, 5, [1, 1], [7, 16]),
    (1, 100, 17, [40], [31]), (2, 64, 0, [1], [1]),
)  # fmt: skip
def test_layer_is_near_the_float_layer(heads, head_size, known, sizes, frames, kind):
    layer = layer_of(heads, head_size)
    size, width = heads * head_size, max(sizes)
    generator = torch.Generator().manual_seed(0)
    encoder_out = torch.randn(len(sizes), max(frames), size, generator=generator)
    hidden = torch.randn(sum(sizes), size, generator=generator)
    visible = torch.rand(len(sizes), 1, width, known + width, generator=generator) < 0.5
    visible[..., known:] |= torch.eye(width, dtype=torch.bool)
    present = torch.arange(width) < torch.tensor(sizes)[:, None]
    visible[..., known:] &= present[:, None, None]  # slots without a node are not visible
    padded = torch.nn.functional.pad(visible[:, 0], (0, -visible.size(-1) % 16))
    bits = torch.from_numpy(np.packbits(padded.numpy(), axis=-1, bitorder="little"))
    masks = torch.where(visible, 0.0, -torch.inf), bits
    packing = Packing.of(sizes, hidden.device)
    lengths, results = torch.tensor(frames), []
    weights = whisper_weights(layer)
    exact = LayerStack([PackedLayer(weights, precision.Precision(torch.float32))])
    for packed, mask in zip((exact, NativeStack([NativeLayer(weights)])), masks, strict=True):
        state = StateWithNodes(packed, encoder_out, lengths, known)
        given = hidden.clone()
        nodes = NewNodes(None, None, mask, packing)
        results.append((packed.extend(given, nodes, 0, state), state.slots))
        assert torch.equal(given, hidden)
    changes = [extended - hidden for extended, _ in results]
    new = [slots[0, :, known : known + width][present] for _, slots in results]
    assert max(relative_error(*reversed(pair)) for pair in (changes, new)) < 0.02
    assert torch.equal(results[1][1][:, :, :known], results[0][1][:, :, :known])


def unpack(packed: torch.Tensor, frames: int, size: int, kind: str) -> list[torch.Tensor]:
    """Keys and values (U, heads, padded frames, padded size) in the kernels' layout."""
    padded, columns = -(-frames // 32) * 32, -(-size // 32) * 32
    packed, scales = packed.split([4 * padded * columns, packed.size(-1) - 4 * padded * columns], 2)
    dtype = torch.int16 if attends_in_integers(kind) else torch.bfloat16
    keys, values = packed.contiguous().view(dtype).unflatten(-1, (2, -1)).unbind(2)
    # Blocks of 16 columns, which consist of pairs of neighbors in depth.
    keys = keys.unflatten(-1, (padded // 16, columns // 32, 16, 16, 2)).permute(0, 1, 2, 5, 3, 4, 6)
    values = values.unflatten(-1, (columns // 16, padded // 32, 16, 16, 2))
    values = values.permute(0, 1, 3, 4, 6, 2, 5)
    parts = [part.reshape(*packed.shape[:2], padded, columns).double() for part in (keys, values)]
    if attends_in_integers(kind):
        of_parts = scales.contiguous().view(torch.float32).unflatten(-1, (2, padded, 1)).unbind(2)
        parts = [part * scale for part, scale in zip(parts, of_parts, strict=True)]
    return parts


SHAPES = [  # heads, head size, frames
    (2, 64, 200), (4, 40, 97), (3, 8, 96), (1, 100, 33), (2, 32, 31), (2, 64, 1), (8, 64, 500),
]  # fmt: skip


@pairs(kind=KINDS, shape=SHAPES, utterances=[1, 3], threads=[1, 2], indirect=["kind", "threads"])
def test_packed_keys_and_values_are_products(kind, shape, utterances, threads):
    heads, head_size, frames = shape
    layer = NativeLayer(whisper_weights(layer_of(heads, head_size)))
    generator = torch.Generator().manual_seed(frames)
    encoder_out = torch.randn(utterances, frames, heads * head_size, generator=generator)
    packed = layer.project_encoder_out(encoder_out).packed
    expected = layer.cross_keys_values(encoder_out.flatten(0, 1))
    if attends_in_integers(kind):
        expected = rounded(expected.reshape(-1, head_size), 4096)
    else:
        expected = expected.bfloat16().double()
    expected = expected.view(utterances, frames, 2, heads, head_size).permute(2, 0, 3, 1, 4)
    for unpacked, rows in zip(unpack(packed, frames, head_size, kind), expected, strict=True):
        torch.testing.assert_close(unpacked[:, :, :frames, :head_size], rows, rtol=1e-6, atol=0.0)
        assert not unpacked[:, :, frames:].any() and not unpacked[..., head_size:].any()


@combinations(heads=["linear", "block", "recurrent", "attending"])
def test_decoder_is_near_the_trained_one(kind, heads):
    decoder = halve(tiny_decoder(0, heads, vocab_size=500))
    encoder_out, lengths = random_encoder_out(0, [50, 4])
    runtime = build_runtime(decoder, "int8")
    assert isinstance(runtime.layers[0], NativeLayer)
    results = []
    for threads in (1, 2, 2):
        with some_threads(threads):
            outputs = branched(runtime, encoder_out, lengths)
        results.append((outputs.hidden, outputs.head_input, runtime.logits(outputs.hidden)))
    for first, second, third in zip(*results, strict=True):
        assert torch.equal(first, second) and torch.equal(first, third), "the same each time"
    exact = decoder.hidden_states(encoder_out, lengths, torch.tensor([[1, 3, 5, 1], [4, 6, 0, 0]]))
    exact = exact.hidden, exact.head_input, decoder.logits(exact.hidden)
    for result, of_sequences in zip(results[0], exact, strict=True):
        expected = torch.stack([of_sequences[0, 2], of_sequences[0, 3], of_sequences[1, 1]])
        assert relative_error(result[:3], expected) < 0.06


def outputs_of_all_kernels(seed):
    """Integer products, then outputs that also depend on attention."""
    generator = torch.Generator().manual_seed(seed)
    products, activations = [], [None, "gelu", "silu", "relu"] * 2
    for (size, out), activation in zip(SIZES, activations, strict=False):
        weight, hidden = (torch.randn(rows, size, generator=generator) for rows in (out, 7))
        products += [NativeLinear(weight, None, activation, bits)(hidden) for bits in (8, 4)]
    encoder = build_encoder_runtime(tiny_encoder(seed, output_size=40, attention_heads=2), "int8")
    encoder_out, lengths = encoder(
        torch.randn(2, 90, 80, generator=generator), torch.tensor([90, 31])
    )
    runtime = build_runtime(tiny_decoder(seed, "block", vocab_size=500), "int8")
    state = runtime.start(*random_encoder_out(seed, [60, 9]))
    outputs = runtime.extend(state, [[1, 2, 3], [4]], [[ROOT, 0, 0], [ROOT]])
    logits = runtime.logits(outputs.hidden)
    best = runtime.best_tokens(logits)
    rest = encoder_out, outputs.hidden, outputs.head_input, logits, best.tokens, best.normalizers
    return products, rest


@combinations(seed=range(2))
def test_all_instruction_sets_compute_the_same(seed):
    """Bit for bit, but bfloat16 instructions sum in another order."""
    outputs = {}
    for kind in KINDS:
        with running(kind):
            outputs[kind] = outputs_of_all_kernels(seed)
    products, rest = outputs[KINDS[-1]]
    for kind, (other_products, other_rest) in outputs.items():
        compared = [*zip(other_products, products, strict=True)]
        if attends_in_integers(kind.split()[0]):
            compared += zip(other_rest, rest, strict=True)
        assert all(torch.equal(*pair) for pair in compared), kind


@combinations(seed=range(4))
def test_outputs_of_a_node_depend_on_its_path_only(kind, seed):
    """Bit for bit, for any other nodes, batch and slots."""
    rng = random.Random(seed)
    grown = Grown(tiny_decoder(seed, "block"), *random_encoder_out(seed, [40, 9, 1]), "int8")
    for _ in range(5):
        sizes = [rng.randint(1, 9) for _ in range(3)]
        outputs, places = grown.extend(*random_nodes(rng, grown, sizes))
        for packed, (row, slot) in enumerate(places):
            alone = grown.runtime.start(*grown.utterance(row))
            for place, token in enumerate(grown.path(row, slot)):
                expected = grown.runtime.extend(alone, [[token]], [[place - 1]])
            assert torch.equal(outputs.hidden[packed], expected.hidden[0])
            assert torch.equal(outputs.head_input[packed], expected.head_input[0])
        grown.keep(some_subtrees(rng, grown))


@pairs(
    kind=KINDS, heads=["linear", "recurrent", "attending"], beam_size=[1, 4], indirect=["kind"]
)  # fmt: skip
def test_drafts_change_neither_text_nor_scores(kind, heads, beam_size):
    encoder_out, lengths = random_encoder_out(0, [20, 9])
    runtime, n_best = build_runtime(tiny_decoder(1, heads), "int8"), []
    for depth in (0, None):
        options = SearchOptions(search="greedy" if beam_size == 1 else "beam", draft_depth=depth)
        states = run_search(build_search(runtime, options, beam_size), encoder_out, lengths, 30)
        n_best.append([[(best.tokens, best.score) for best in state.n_best] for state in states])
    assert n_best[0] == n_best[1]


@pairs(
    kind=KINDS, beam_size=[1, 4], dtype=[torch.bfloat16, torch.float64], indirect=["kind"]
)  # fmt: skip
def test_torchs_default_dtype_changes_nothing(kind, beam_size, dtype):
    encoder_out, lengths = random_encoder_out(0, [20, 9])
    runtime, n_best = build_runtime(tiny_decoder(1), "int8"), []
    options = SearchOptions(search="greedy" if beam_size == 1 else "beam")
    for default in (torch.float32, dtype):
        torch.set_default_dtype(default)
        try:
            states = run_search(build_search(runtime, options, beam_size), encoder_out, lengths, 30)
        finally:
            torch.set_default_dtype(torch.float32)
        n_best.append([[(best.tokens, best.score) for best in state.n_best] for state in states])
    assert n_best[0] == n_best[1]
