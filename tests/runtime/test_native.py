"""Kernels of our own: what they compute, on every kind of processor, and what is done without."""

import logging
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from kernel_kinds import KINDS, forget, running, some_threads, with_kernels
from tiny import EOS, VOCAB_SIZE, random_memory, tiny_decoder, tiny_encoder

from espnet_medusa.errors import InputError
from espnet_medusa.model.masks import padding_mask
from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.runtime import linear as torch_linear
from espnet_medusa.runtime import precision
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.runtime.cross_attention import whisper_weights
from espnet_medusa.runtime.encoder import build_encoder_runtime
from espnet_medusa.runtime.layer import LayerStack, PackedLayer, Packing
from espnet_medusa.runtime.native import build, library
from espnet_medusa.runtime.native.build import AVX2, BEST_FIRST, VARIABLE
from espnet_medusa.runtime.native.operations import NativeLinear
from espnet_medusa.runtime.native_decoder import NativeLayer, NativeStack
from espnet_medusa.search.build import build_beam, build_greedy
from espnet_medusa.search.options import LengthLimits, SearchOptions
from espnet_medusa.tree.token_tree import ROOT

SIZES = [(384, 1536), (512, 51), (160, 640), (640, 160), (40, 33), (1, 7), (65, 129)]  # D, M
ROWS = [1, 2, 11, 16, 17, 32, 40]
FLAGS = {one.name: one.flags for one in BEST_FIRST}
INT8_MAX = 127

pytestmark = with_kernels


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """Rows in 8-bit integers of a scale each, in float64."""
    largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-20)
    return (rows * (INT8_MAX / largest)).round().double() * (largest.double() / INT8_MAX)


@pytest.mark.parametrize("activation", [None, *torch_linear.ACTIVATIONS])
@pytest.mark.parametrize(("size", "out"), SIZES)
def test_products_are_those_of_rounded_numbers(kind, size, out, activation):
    generator = torch.Generator().manual_seed(size)
    weight = torch.randn(out, size, generator=generator) / size**0.5
    bias = torch.randn(out, generator=generator) if activation else None
    found = NativeLinear(weight, bias, activation)
    assert torch.allclose(found.rows(torch.arange(out)).double(), rounded(weight), atol=1e-6)
    for rows in ROWS:
        hidden = torch.randn(rows, size, generator=generator)
        residual = torch.randn(rows, out, generator=generator)
        expected = rounded(hidden) @ rounded(weight).T
        exact = hidden.double() @ weight.double().T
        if activation:
            expected = torch_linear.ACTIVATIONS[activation](expected + bias.double())
            exact = torch_linear.ACTIVATIONS[activation](exact + bias.double())
        near = dict(rtol=0.0, atol=2e-5)
        torch.testing.assert_close(found(hidden).double(), expected, **near)
        torch.testing.assert_close(found(hidden, residual).double(), expected + residual, **near)
        error = (expected - exact).norm() / exact.norm()
        assert error < 0.02
        assert torch.equal(found(hidden)[-1:], found(hidden[-1:])), "other rows count for nothing"


def test_nothing_and_large_numbers_stay_finite(kind):
    weight = torch.randn(40, 70)
    weight[2] = 0
    for activation in (None, *torch_linear.ACTIVATIONS):
        linear = NativeLinear(weight, None, activation)
        found = linear(torch.stack([torch.zeros(70), torch.full((70,), 1e6), torch.ones(70)]))
        assert torch.isfinite(found).all() and not found[0].any() and not found[:, 2].any()
        assert linear(torch.zeros(0, 70)).shape == (0, 40)


def test_the_largest_integers_add_up(kind):
    """Sums of their products do not fit 16 bits, not even of two."""
    generator = torch.Generator().manual_seed(0)
    weight, hidden = (torch.randn(rows, 640, generator=generator).sign() for rows in (70, 13))
    hidden[0], weight[0], weight[1] = 1, 1, -1
    torch.testing.assert_close(NativeLinear(weight, None)(hidden), hidden @ weight.T)


def layer_of(heads: int, head_size: int) -> torch.nn.Module:
    """A trained layer whose attention matters."""
    torch.manual_seed(head_size)
    size = heads * head_size
    sizes = {"num_blocks": 1, "attention_heads": heads, "linear_units": 3 * size}
    layer = WhisperMedusaDecoder(10, size, **sizes).layers[0]
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=1.5 / size**0.5 if parameter.dim() == 2 else 0.5)
    return layer.eval()


class Known:
    """A state as layers use it."""

    def __init__(self, layers, memory, lengths, known):
        layer = layers[0]
        generator = torch.Generator().manual_seed(1)
        shape = (1, len(memory), known + 64, 2, layer.num_heads, layer.head_size)
        self.cache = self
        self.slots = torch.randn(shape, generator=generator)
        self.num_nodes = known
        self.memory = [layer.project_memory(memory)]
        self.memory_mask = padding_mask(memory, lengths)

    def write(self, layer, keys_values):
        end = self.num_nodes + keys_values.size(1)
        self.slots[layer][:, self.num_nodes : end] = keys_values
        return self.slots[layer][:, :end]


@pytest.mark.parametrize(
    ("heads", "head_size", "known", "sizes", "frames"),
    [
        (2, 64, 40, [11], [150]),
        (4, 40, 0, [3, 1, 33], [33, 64, 1]),
        (3, 8, 5, [1, 1], [7, 16]),
        (1, 100, 17, [40], [31]),
        (2, 64, 0, [1], [1]),
    ],
)
@torch.no_grad()
def test_a_layer_is_the_float_layer(kind, heads, head_size, known, sizes, frames):
    layer = layer_of(heads, head_size)
    size, width = heads * head_size, max(sizes)
    generator = torch.Generator().manual_seed(0)
    memory = torch.randn(len(sizes), max(frames), size, generator=generator)
    hidden = torch.randn(sum(sizes), size, generator=generator)
    seen = torch.rand(len(sizes), 1, width, known + width, generator=generator) < 0.5
    seen[..., known:] |= torch.eye(width, dtype=torch.bool)
    present = torch.arange(width) < torch.tensor(sizes)[:, None]
    seen[..., known:] &= present[:, None, None]  # nobody sees slots without a node
    padded = torch.nn.functional.pad(seen[:, 0], (0, -seen.size(-1) % 16))
    bits = torch.from_numpy(np.packbits(padded.numpy(), axis=-1, bitorder="little"))
    masks = torch.where(seen, 0.0, -torch.inf), bits
    packing = Packing.of(sizes, hidden.device)
    lengths, found = torch.tensor(frames), []
    weights = whisper_weights(layer)
    exact = LayerStack([PackedLayer(weights, precision.Precision(torch.float32))])
    for packed, mask in zip((exact, NativeStack([weights])), masks, strict=True):
        state = Known(packed, memory, lengths, known)
        given = hidden.clone()
        found.append((packed.extend(given, packing, 0, mask, state), state.slots))
        assert torch.equal(given, hidden)
    changes = [extended - hidden for extended, _ in found]
    assert (changes[1] - changes[0]).norm() / changes[0].norm() < 0.02
    new = [slots[0, :, known : known + width][present] for _, slots in found]
    assert (new[1] - new[0]).norm() / new[0].norm() < 0.02
    assert torch.equal(found[1][1][:, :, :known], found[0][1][:, :, :known])


def laid_out(packed: torch.Tensor, frames: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (U, heads, padded frames, padded size) of the kernels' layout."""
    padded, columns = -(-frames // 32) * 32, -(-size // 32) * 32
    keys, values = packed.view(torch.bfloat16).unflatten(-1, (2, -1)).unbind(2)
    # Blocks of 16 columns, in which pairs of neighbours in depth stand column by column.
    keys = keys.unflatten(-1, (padded // 16, columns // 32, 16, 16, 2)).permute(0, 1, 2, 5, 3, 4, 6)
    values = values.unflatten(-1, (columns // 16, padded // 32, 16, 16, 2))
    values = values.permute(0, 1, 3, 4, 6, 2, 5)
    return tuple(part.reshape(*packed.shape[:2], padded, columns) for part in (keys, values))


@pytest.mark.parametrize("utterances", [1, 3])
@pytest.mark.parametrize(
    ("heads", "head_size", "frames"),
    [(2, 64, 200), (4, 40, 97), (3, 8, 96), (1, 100, 33), (2, 32, 31), (2, 64, 1), (8, 64, 500)],
)
@torch.no_grad()
def test_the_memory_is_the_product_of_few_rows(kind, heads, head_size, frames, utterances, threads):
    layer = NativeLayer(whisper_weights(layer_of(heads, head_size)))
    generator = torch.Generator().manual_seed(frames)
    memory = torch.randn(utterances, frames, heads * head_size, generator=generator)
    packed = layer.project_memory(memory).packed
    expected = layer.cross_keys_values(memory.flatten(0, 1)).bfloat16()
    expected = expected.view(utterances, frames, 2, heads, head_size).permute(2, 0, 3, 1, 4)
    for found, rows in zip(laid_out(packed, frames, head_size), expected, strict=True):
        assert torch.equal(found[:, :, :frames, :head_size], rows)
        assert not found[:, :, frames:].any() and not found[..., head_size:].any()


@torch.no_grad()
def test_frames_behind_the_end_and_other_utterances_count_for_nothing(kind):
    decoder = tiny_decoder(0)
    memory, lengths = random_memory(0, [40, 9])
    runtime = build_runtime(decoder, "int8")
    found = []
    for used, frames in ((memory, lengths), (memory[1:, :9], lengths[1:])):
        state = runtime.start(used, frames)
        for tokens, parents in (([1, 2, 3], [ROOT, 0, 0]), ([5], [2])):
            outputs = runtime.extend(state, [tokens] * len(used), [parents] * len(used))
            found.append(outputs.hidden[-len(tokens) :])
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])


@pytest.mark.parametrize("heads", ["linear", "block", "recurrent", "attending"])
@torch.no_grad()
def test_a_decoder_is_near_the_trained_one(kind, heads):
    decoder = tiny_decoder(0, heads, vocab_size=500)
    for parameter in decoder.parameters():
        parameter.mul_(0.5)
    memory, lengths = random_memory(0, [50, 4])
    runtime = build_runtime(decoder, "int8")
    assert isinstance(runtime.layers[0], NativeLayer)
    found = []
    for threads in (1, 2, 2):
        with some_threads(threads):
            state = runtime.start(memory, lengths)
            runtime.extend(state, [[1, 2, 3], [4]], [[ROOT, 0, 0], [ROOT]])
            outputs = runtime.extend(state, [[5, 1], [6, 7, 8]], [[2, 3], [0, 3, 3]])
        found.append((outputs.hidden, outputs.head_input, runtime.logits(outputs.hidden)))
    for one, other, again in zip(*found, strict=True):
        assert torch.equal(one, other) and torch.equal(one, again), "the same each time"
    sequences = torch.tensor([[1, 3, 5, 1], [4, 6, 0, 0]])
    exact = decoder.hidden_states(memory, lengths, sequences)
    for index, of in ((0, exact.hidden), (1, exact.head_input), (2, decoder.logits(exact.hidden))):
        expected = torch.stack([of[0, 2], of[0, 3], of[1, 1]])
        error = (found[0][index][:3] - expected).norm() / expected.norm()
        assert error < 0.06


def outputs_of_all_kernels(seed):
    """Products, memory and nodes of random networks."""
    generator = torch.Generator().manual_seed(seed)
    found = [
        NativeLinear(torch.randn(out, size, generator=generator), None, activation)(
            torch.randn(7, size, generator=generator)
        )
        for (size, out), activation in zip(SIZES, [None, "gelu", "silu", "relu"] * 2, strict=False)
    ]
    encoder = build_encoder_runtime(tiny_encoder(seed, output_size=40, attention_heads=2), "int8")
    features = torch.randn(2, 90, 80, generator=generator)
    memory, lengths = encoder(features, torch.tensor([90, 31]))
    runtime = build_runtime(tiny_decoder(seed, "block", vocab_size=500), "int8")
    state = runtime.start(*random_memory(seed, [60, 9]))
    outputs = runtime.extend(state, [[1, 2, 3], [4]], [[ROOT, 0, 0], [ROOT]])
    logits = runtime.logits(outputs.hidden)
    best = runtime.best_tokens(logits)
    rest = memory, outputs.hidden, outputs.head_input, logits, best.tokens, best.normalizers
    return found, rest


@pytest.mark.parametrize("seed", range(2))
@torch.no_grad()
def test_all_processors_give_the_same_numbers(seed):
    """Bit for bit; but bfloat16 by instructions of its own rounds sums in another order."""
    found = {}
    for kind in KINDS:
        with running(kind):
            found[kind] = outputs_of_all_kernels(seed)
    products, rest = found[KINDS[-1]]
    for (name, _), (own_products, own_rest) in found.items():
        pairs = [*zip(own_products, products, strict=True)]
        if "avx512_bf16" not in FLAGS[name]:
            pairs += zip(own_rest, rest, strict=True)
        assert all(torch.equal(*pair) for pair in pairs), name


def grow(rng, paths):
    """Some new nodes behind those of ``paths`` (by slot, None: empty): tokens and parents."""
    tokens, parents = [], []
    for _ in range(rng.randint(1, 9)):
        parent = rng.choice([slot for slot, path in enumerate(paths) if path] or [ROOT])
        tokens.append(rng.randrange(VOCAB_SIZE))
        paths.append([*(paths[parent] if parent != ROOT else []), tokens[-1]])
        parents.append(parent)
    return tokens, parents


def some_to_keep(rng, paths):
    """Slots of some nodes and of all before them."""
    tips = rng.choices([path for path in paths if path], k=2)
    before = [tip[:length] for tip in tips for length in range(1, len(tip) + 1)]
    return [slot for slot, path in enumerate(paths) if path in before]


def fill(paths):
    width = max(map(len, paths))
    for row in paths:
        row += [None] * (width - len(row))


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_what_a_node_gives_depends_on_its_path_alone(kind, seed):
    """Bit for bit: whatever stands beside it in the tree, in the batch, and wherever it lies."""
    rng = random.Random(seed)
    memory, lengths = random_memory(seed, [20, 9, 1])
    runtime = build_runtime(tiny_decoder(seed, "block"), "int8")
    state, paths = runtime.start(memory, lengths), [[], [], []]
    for _ in range(5):
        first = len(paths[0])
        tokens, parents = zip(*(grow(rng, row) for row in paths), strict=True)
        outputs = runtime.extend(state, tokens, parents)
        found = iter(zip(outputs.hidden, outputs.head_input, strict=True))
        for row, of_row in enumerate(paths):
            one = lengths[row : row + 1]
            for path in of_row[first:]:
                alone = runtime.start(memory[row : row + 1, : int(one)], one)
                for place, token in enumerate(path):
                    expected = runtime.extend(alone, [[token]], [[place - 1]])
                hidden, head_input = next(found)
                assert torch.equal(hidden, expected.hidden[0])
                assert torch.equal(head_input, expected.head_input[0])
        fill(paths)
        kept = [some_to_keep(rng, row) for row in paths]
        runtime.keep(state, kept)
        paths = [[row[slot] for slot in slots] for row, slots in zip(paths, kept, strict=True)]
        fill(paths)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("heads", ["linear", "recurrent", "attending"])
def test_drafts_change_neither_text_nor_scores(kind, heads, beam_size):
    memory, lengths = random_memory(0, [20, 9])
    prompt, sizes = torch.full((2, 1), EOS), (VOCAB_SIZE, EOS)
    decoder, found = tiny_decoder(1, heads), []
    for depth in (0, None):
        options = SearchOptions(search="greedy" if beam_size == 1 else "beam", draft_depth=depth)
        runtime, device = build_runtime(decoder, "int8"), torch.device("cpu")
        if beam_size == 1:
            search = build_greedy(options, runtime, *sizes, device)
        else:
            weights = {"decoder": 1.0}
            parts = options, runtime, {}, None, weights, beam_size, *sizes, False, device
            search = build_beam(*parts)
        search_states = search(memory, lengths, prompt, LengthLimits(-30))
        found.append(
            [
                [(one.tokens, one.score) for one in search_state.n_best]
                for search_state in search_states
            ]
        )
    assert found[0] == found[1]


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Nothing is loaded or compiled yet; afterwards all is as it was."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("CXX", "no-such-compiler", "no C++ compiler (no-such-compiler)"),
        (VARIABLE, "none", "ESPNET_MEDUSA_CPU_ISA is none"),
    ],
)
@torch.no_grad()
def test_without_kernels_torch_computes(fresh, caplog, variable, value, reason):
    fresh.setenv(variable, value)
    decoder = tiny_decoder(0, vocab_size=500)
    memory, lengths = random_memory(0, [5, 9])
    runtime = build_runtime(decoder, "int8")
    tokens = [[1, 2], [3, 4]]
    outputs = runtime.extend(runtime.start(memory, lengths), tokens, [[ROOT, 0]] * 2)
    exact = decoder.hidden_states(memory, lengths, torch.tensor(tokens)).hidden.flatten(0, 1)
    for found, expected in (
        (outputs.hidden.float(), exact),
        (runtime.logits(outputs.hidden).float(), decoder.logits(exact)),
    ):
        assert (found - expected).norm() / expected.norm() < 0.06
    assert isinstance(runtime.layers[0], PackedLayer)
    assert isinstance(runtime.projection, torch_linear.Int8Linear)
    build_runtime(decoder, "int8")
    assert caplog.text.count(f"torch's kernels, which are slower: {reason}") == 1, "said once"


def test_what_the_variable_may_name_is_said(fresh):
    fresh.setenv(VARIABLE, "SSE9")
    with pytest.raises(InputError, match=f"{VARIABLE}: 'SSE9' is not known.*AVX2, none"):
        build.load_library()
    fresh.setattr(build, "processor_flags", lambda: AVX2.flags)
    fresh.setenv(VARIABLE, "AMX")
    with pytest.raises(InputError, match=f"{VARIABLE}: 'AMX' is not known.*allowed: AVX2, none"):
        build.load_library()


@pytest.mark.parametrize("best", range(len(BEST_FIRST)))
def test_a_processor_gets_the_best_that_it_has(fresh, best):
    fresh.delenv(VARIABLE, raising=False)
    one = BEST_FIRST[best]
    fresh.setattr(build, "processor_flags", lambda: {*one.flags, "sse2"})
    found = build.usable_sets()
    assert found[0] is one and found[-1] is AVX2
    fresh.setattr(build, "processor_flags", lambda: {*one.flags} - {"avx2"})
    assert build.usable_sets() == []


def test_what_is_missing_is_said(fresh, tmp_path):
    for module in (build,):
        fresh.setattr(module, "processor_flags", lambda: {"avx2"})
    with pytest.raises(build.Unavailable, match="this processor lacks bmi2, fma"):
        build.open_best(build.usable_sets())
    with pytest.raises(build.Unavailable, match="false fails"):
        build.compiled(AVX2, ["false"], tmp_path)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Sources that take no time to compile."""
    source = tmp_path / "sources" / "kernels.cpp"
    source.parent.mkdir()
    source.write_text('extern "C" int request_tiles() { return 0; }')
    monkeypatch.setattr(build, "FOLDER", source.parent)


def test_a_lesser_set_where_the_compiler_does_not_know_the_best(fresh, small, caplog):
    unknown = build.InstructionSet("NEWER", frozenset(["no_such_instructions"]))
    with caplog.at_level(logging.INFO):
        assert build.open_best([unknown, AVX2])
    assert "native kernels: AVX2; NEWER: " in caplog.text
    assert "mnosuchinstructions" in caplog.text


def test_a_folder_that_cannot_be_made_and_a_broken_file_are_said(tmp_path):
    (tmp_path / "file").write_text("no library")
    with pytest.raises(build.Unavailable, match="kernels cannot be cached .*file"):
        build.library_folder(tmp_path / "file")
    with pytest.raises(build.Unavailable, match="cannot be loaded"):
        build.open_library(tmp_path / "file")


def test_several_may_compile_at_once(small, tmp_path):
    folder = build.library_folder(tmp_path / "new")
    assert folder.stat().st_mode & 0o777 == 0o700
    arguments = AVX2, build.find_compiler(), folder
    with ThreadPoolExecutor(2) as pool:
        paths = [*pool.map(lambda _: build.compiled(*arguments), range(2))]
    assert paths[0] == paths[1] and [*folder.iterdir()] == [paths[0]]
    assert build.open_library(paths[0])
    compiled = paths[0].stat().st_mtime_ns
    assert build.compiled(*arguments).stat().st_mtime_ns == compiled, "not made again"
    paths[0].chmod(0o775)
    with pytest.raises(build.Unavailable, match=f"cannot be cached .{paths[0]}: others may write"):
        build.compiled(*arguments)


def test_libraries_that_others_may_have_made_are_not_used(fresh, tmp_path, caplog):
    folder = build.library_folder(tmp_path / "espnet_medusa" / "kernels")
    folder.chmod(0o777)
    assert library.kernels() is None and library.kernels() is None
    said = f"kernels cannot be cached ({folder}: others may write to it; run `chmod go-w {folder}`"
    assert caplog.text.count(said) == 1 and not [*folder.iterdir()]


def test_models_kept_beside_kernels_may_be_a_groups(fresh, small, tmp_path):
    (tmp_path / "espnet_medusa" / "models").mkdir(parents=True)
    (tmp_path / "espnet_medusa").chmod(0o775)
    assert build.open_best([AVX2])


def test_the_log_says_which_kernels_run(kind, caplog):
    forget()
    with caplog.at_level(logging.INFO):
        library.kernels()
    assert f"native kernels: {kind}" in caplog.text
