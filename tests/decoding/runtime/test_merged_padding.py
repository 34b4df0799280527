"""Merged padding: exact where the merged rows are equal, in all that reads encoder output."""

import torch
from cases import combinations
from grown_trees import extend_chains
from kernel_kinds import with_kernels
from tiny import tiny_decoder, tiny_encoder

from espnet_medusa.data.encoder_rows import frame_counts, repeat_rows, row_counts
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.native.operations import NativeBfloat16Linear, NativeLinear
from espnet_medusa.decoding.runtime.native_encoder import NativeEncoder
from espnet_medusa.networks.merged_padding import group_sizes, kept_rows, window_rows

SPEECH = torch.tensor([1, 37, 100, 60, 99])
FRAMES, WIDTH = 100, 32
KEPT = kept_rows(SPEECH, FRAMES)


def with_equal_padding(seed: int) -> torch.Tensor:
    """Return (U, FRAMES, WIDTH) whose rows after the speech of an utterance are equal."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(len(SPEECH), FRAMES, WIDTH, generator=generator)
    for row, count in enumerate(SPEECH.tolist()):
        hidden[row, count:] = torch.randn(WIDTH, generator=generator)
    return hidden


def merge_rows(hidden: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return merged rows (U, S', D), without positions, and the frames of each (U, S')."""
    lengths = torch.full((len(hidden),), hidden.size(1))
    return window_rows(hidden, lengths, 0, torch.zeros(hidden.shape[1:]), kept)


def expand(merged: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Repeat merged rows for all their frames: (U, S', D) to (U, FRAMES, D)."""
    rows = zip(merged, sizes, strict=True)
    return torch.stack([repeat_rows(row[: len(count)], count) for row, count in rows])


@combinations(frames=[0, 1, 15, 16, 17, 23, 24, 25, 26, 1475])
def test_groups_cover_the_padding_but_its_end(frames):
    assert kept_rows(torch.tensor([frames, frames + 25]), frames).all(), "without padding"
    sizes = group_sizes(kept_rows(torch.tensor([0]), frames)[0]).tolist()
    assert sum(sizes) == frames and all(size > 0 for size in sizes)
    assert sizes[-16:] == [1] * min(frames, 16)
    assert set(sizes[:-17]) <= {8} and (len(sizes) < 17 or sizes[-17] <= 8)


@combinations(seed=range(5))
def test_a_row_is_the_middle_of_the_frames_that_it_stands_for(seed):
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(len(SPEECH), FRAMES, generator=generator) < (0.2 * seed)
    kept = (kept | KEPT) if seed % 2 else kept.sort(dim=1)[0]
    kept[2] = True
    hidden = torch.randn(len(SPEECH), FRAMES, WIDTH, generator=generator)
    merged, sizes = merge_rows(hidden, kept)
    assert frame_counts(sizes).tolist() == [FRAMES] * len(SPEECH)
    assert row_counts(sizes).max() == merged.size(1) == FRAMES, "the third fills the window"
    for row, keep in enumerate(kept.tolist()):
        expected, place = [], 0
        while place < FRAMES:
            size = 1
            while not any(keep[place : place + size + 1]) and size < min(8, FRAMES - place):
                size += 1
            expected.append(hidden[row, place + size // 2])
            place += size
        assert len(expected) == row_counts(sizes)[row]
        assert torch.equal(merged[row, : len(expected)], torch.stack(expected))


@combinations(kept=[None, KEPT, torch.ones_like(KEPT)], copies=[0, 1, 33, 98])
def test_window_rows_are_chosen_from_all_rows_with_positions(copies, kept):
    """Bit for bit."""
    size, positions = FRAMES - copies, torch.randn(FRAMES + 5, WIDTH)
    hidden = torch.randn(len(SPEECH), size, WIDTH)
    inserted = [hidden[:, :-1], hidden[:, -2:-1].expand(-1, copies, -1), hidden[:, -1:]]
    full = torch.cat(inserted, dim=1) + positions[:FRAMES]
    rows, lengths = window_rows(hidden, torch.full_like(SPEECH, size), copies, positions, kept)
    if kept is not KEPT:
        assert torch.equal(rows, full) and lengths.tolist() == [FRAMES] * len(SPEECH)
        return
    expected, sizes = merge_rows(full, kept)
    assert torch.equal(lengths, sizes)
    for row, count in enumerate(row_counts(sizes).tolist()):
        assert torch.equal(rows[row, :count], expected[row, :count])


def test_encoder_output_without_padding_has_all_frames_of_pauses():
    encoder, hidden = tiny_encoder(0, max_source_positions=FRAMES), with_equal_padding(0)
    hidden[:, 5:30] = hidden[:, 5:6]
    pauses = KEPT.clone()
    pauses[:, 5:30] = False
    lengths = torch.tensor([320, 8000, 25000, 12000, 24000])
    full = encoder.unpadded(hidden, torch.full_like(SPEECH, FRAMES), lengths)
    assert {len(row) for row in full} > {26, 100}
    merged = encoder.unpadded(*merge_rows(hidden, pauses), lengths)
    for row, expected in zip(merged, full, strict=True):
        assert torch.equal(row[:30], expected[:30]) and len(row) == len(expected)


def test_merged_rows_count_as_often_as_their_frames_in_the_encoder():
    encoder, hidden = tiny_encoder(0, max_source_positions=FRAMES), with_equal_padding(0)
    merged, sizes = merge_rows(hidden, KEPT)
    expected = encoder._run_layers(hidden, torch.full_like(SPEECH, FRAMES))
    result = encoder._run_layers(merged, sizes)
    torch.testing.assert_close(expand(result, sizes), expected, rtol=0.0, atol=1e-5)
    unweighted = encoder._run_layers(merged, row_counts(sizes))
    assert not torch.allclose(expand(unweighted, sizes), expected, atol=1e-3)


@with_kernels
@combinations(product=[NativeLinear, NativeBfloat16Linear])
def test_merged_rows_count_as_often_as_their_frames_in_the_kernels(kind, product):
    encoder, hidden = tiny_encoder(0, max_source_positions=FRAMES), with_equal_padding(0)
    runtime = NativeEncoder(encoder.whisper, product)
    merged, sizes = merge_rows(hidden, KEPT)
    alone = [part.clone() for part in merged]
    runtime._run_layers(hidden, torch.full_like(SPEECH, FRAMES))
    runtime._run_layers(merged, sizes)
    error = expand(merged, sizes) - hidden
    assert error.norm() < 0.005 * hidden.norm(), "weights of attention are rounded"
    for row, (part, count) in enumerate(zip(alone, row_counts(sizes).tolist(), strict=True)):
        part = part[None, :count].contiguous()
        runtime._run_layers(part, sizes[row : row + 1, :count])
        assert torch.equal(part[0], merged[row, :count]), "alone as in the batch"


@combinations(heads=["linear", "attending"], precision=[None, "int8"])
def test_merged_rows_count_as_often_as_their_frames_in_the_decoder(heads, precision):
    runtime, encoder_out = build_runtime(tiny_decoder(0, heads), precision), with_equal_padding(1)
    merged, sizes = merge_rows(encoder_out, KEPT)
    lengths = torch.full_like(SPEECH, FRAMES)
    tokens = torch.tensor([[1 + row, 2, 3] for row in range(len(SPEECH))])
    full, weighted, unweighted = (
        runtime.logits(extend_chains(runtime, *encoded, tokens).hidden)
        for encoded in ((encoder_out, lengths), (merged, sizes), (merged, row_counts(sizes)))
    )
    most = 1e-4 if precision is None else 0.01 * full.abs().max()
    torch.testing.assert_close(weighted, full, rtol=0.0, atol=float(most))
    assert (unweighted - full).abs().max() > 3 * (weighted - full).abs().max()
