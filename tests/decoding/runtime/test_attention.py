"""The encoder's attention against float64, for every instruction set."""

from ctypes import addressof, c_int64
from functools import cache
from itertools import product

import torch
from cases import cases, pairs
from kernel_kinds import KINDS, attends_in_integers, with_kernels

from espnet_medusa.data.encoder_rows import row_counts
from espnet_medusa.decoding.runtime.native.library import FramesArguments, address, kernels
from espnet_medusa.networks.masks import padding_mask

pytestmark = with_kernels

INTEGERS, BFLOAT16 = 5e-4, 1.5e-2  # root mean square of errors, relative to what is summed
SIZES = [(2, 64), (3, 8), (2, 40), (1, 100), (2, 1)]  # heads, head size
LENGTHS = [1, 2, 31, 32, 33, 520, 1500]


def random_parts(frames: int, heads: int, size: int, sharpness: float = 1.0) -> torch.Tensor:
    """Return queries, keys, values (3, 1, frames, heads, size); frames and columns have scales."""
    generator = torch.Generator().manual_seed(frames + size)
    parts = torch.randn(3, 1, frames, heads, size, generator=generator)
    parts *= torch.rand(3, 1, frames, 1, 1, generator=generator) + 0.1
    parts[0] *= sharpness
    return parts * (torch.rand(size, generator=generator) + 0.5)


def attend(parts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the kernels' attention (U, S, heads, size); ``lengths`` are (U,) or (U, S)."""
    (queries, keys, values), threads = parts, torch.get_num_threads()
    utterances, frames, heads, size = shape = queries.shape
    joined, result = torch.stack([keys, values], dim=2), queries.contiguous().clone()
    packed = torch.empty(utterances * heads * kernels().cross_bytes(frames, size)).byte()
    packed.fill_(255)  # NaN
    kernels().pack_cross(joined.data_ptr(), *shape, packed.data_ptr(), threads)
    mask = padding_mask(queries, lengths) if lengths.dim() == 2 else None
    counts = (c_int64 * utterances)(*row_counts(lengths).tolist())
    call = FramesArguments(*shape, addressof(counts), address(mask), threads)
    kernels().attend(call, packed.data_ptr(), result.data_ptr())
    return result


def exact(parts: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``attend`` in float64, and the same sums of absolute values, for one utterance."""
    queries, keys, values = parts[:, 0].double().transpose(1, 2)
    logits = queries @ keys.mT / queries.size(-1) ** 0.5
    if lengths.dim() == 2:
        logits += lengths[0].double().log()
    weights = logits.softmax(dim=-1)
    return tuple((weights @ part).transpose(0, 1)[None] for part in (values, values.abs()))


@cache  # of all instruction sets and numbers of threads
def exact_cases(frames: int, merged: bool) -> list[tuple[torch.Tensor, ...]]:
    """Return parts, lengths, and the results of ``exact``, of all sizes."""
    table, every = [], [*product(SIZES, (0.0, 1.0, 4.0))]
    if frames > 100:  # one sharpness per size, another one for other arguments
        first = (frames + merged) % 3
        every = [every[3 * place + (first + place) % 3] for place in range(len(SIZES))]
    for (heads, size), sharpness in every:
        parts = random_parts(frames, heads, size, sharpness)
        lengths = torch.randint(1, 9, (1, frames)) if merged else torch.tensor([frames])
        table.append((parts, lengths, *(part.flatten(2) for part in exact(parts, lengths))))
    return table


@pairs(
    kind=KINDS, frames=LENGTHS, merged=[False, True], threads=[1, 2],
    indirect=["kind", "threads"],
)  # fmt: skip
def test_attention_is_near_float64(kind, frames, merged, threads):
    most = INTEGERS if attends_in_integers(kind) else BFLOAT16
    for parts, lengths, expected, summed in exact_cases(frames, merged):
        errors = (attend(parts, lengths).double().flatten(2) - expected).norm(dim=2)
        errors /= summed.norm(dim=2)
        assert errors.square().mean().sqrt() < most and errors.max() < 5 * most


@pairs(kind=KINDS, sizes=SIZES, threads=[1, 2], indirect=["kind", "threads"])
def test_attention_is_independent_of_the_batch(kind, sizes, threads):
    """Bit for bit, whatever other utterances and padding contain."""
    heads, size = sizes
    sizes = [torch.randint(1, 9, (count,)) for count in LENGTHS]
    frames = torch.nn.utils.rnn.pad_sequence(sizes, batch_first=True)
    parts = torch.cat([random_parts(max(LENGTHS), heads, size)] * len(LENGTHS), dim=1)
    for row, count in enumerate(LENGTHS):
        parts[:, row, count:] = 1e6
    for lengths in (torch.tensor(LENGTHS), frames):
        together = attend(parts, lengths)
        for row, count in enumerate(LENGTHS):
            of_row = lengths[row : row + 1]
            alone = attend(parts[:, row : row + 1, :count], of_row[..., :count])
            assert torch.equal(together[row, :count], alone[0])


@cases((64, 1500), (64, 33), (16, 32), (17, 32), (1, 64), (300, 40))
def test_the_largest_sums_do_not_overflow(size, frames, kind):
    """Neither those of equal numbers, nor those of one large weight."""
    for sharpness in (0.0, 100.0):
        parts = torch.ones(3, 1, frames, 1, size)
        parts[0] *= sharpness
        parts[1, :, 1::2] = -1
        result = attend(parts, torch.tensor([frames]))
        torch.testing.assert_close(result, torch.ones_like(result), rtol=2e-3, atol=0.0)


def test_zeros_and_large_numbers_stay_finite(kind):
    parts = random_parts(70, 2, 64)
    for part in range(3):
        for value in (0.0, 1e-30, 1e6):
            changed = parts.clone()
            changed[part, :, 3:50] = value
            assert torch.isfinite(attend(changed, torch.tensor([70]))).all()
