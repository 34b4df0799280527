"""CTC over units: labels, loss and shapes against torch's loss and ESPnet's blocks."""

import pytest
import torch
from cases import combinations
from espnet2.asr.ctc import CTC
from refusals import refuses
from tokenizers.pre_tokenizers import ByteLevel

from espnet_medusa.data.vocabulary.byte_pairs import BytePairUnits
from espnet_medusa.networks.unit_ctc import UnitCTC

BYTES = sorted(ByteLevel.alphabet())
TOKENS = [*BYTES, "ab", "abc", "<|startoftranscript|>", "<|endoftext|>"]
AB, ABC, START, END = range(256, 260)
SIZE = 12
CONVOLUTIONS = {"input_layer": "conv1d2", "output_size": 8, "num_blocks": 0}
ATTENTION = CONVOLUTIONS | {"num_blocks": 1, "attention_heads": 2, "linear_units": 16}


def unit_ctc(units=256, block=None, conf=None):
    torch.manual_seed(0)
    return UnitCTC(CTC(len(TOKENS), SIZE), BytePairUnits(TOKENS, units), SIZE, block, conf).eval()


def byte(sign):
    return BYTES.index(sign)


def test_labels_are_units_without_prompts():
    text = torch.tensor([[START, ABC, byte("x"), AB, END], [byte("a"), ABC, -1, -1, -1]])
    labels, lengths = unit_ctc(257).labels(text, torch.tensor([5, 2]))
    first = [AB, byte("c"), byte("x"), AB]
    second = [byte("a"), AB, byte("c")]
    assert labels.tolist() == [[unit + 1 for unit in first], [*(unit + 1 for unit in second), -1]]
    assert lengths.tolist() == [4, 3]
    assert unit_ctc().labels(torch.tensor([[START]]), torch.tensor([1]))[1].tolist() == [0]


@pytest.mark.parametrize(
    ("block", "conf"),
    [(None, None), ("transformer", CONVOLUTIONS), ("transformer", ATTENTION)],
    ids=["linear", "convolutions", "attention"],
)
def test_the_loss_equals_torchs(block, conf, no_gradients):
    model = unit_ctc(256, block, conf)
    encoder_out = torch.randn(2, 60, SIZE)
    # ESPnet's subsampling of the last frames depends on the padding.
    lengths = torch.tensor([60, 41 if block is None else 60])
    text = torch.tensor([[ABC, byte("x"), AB], [byte("a"), ABC, -1]])
    labels, label_lengths = model.labels(text, torch.tensor([3, 2]))
    loss = model(encoder_out, lengths, labels, label_lengths)
    expected = 0.0
    for row, frames in enumerate(lengths.tolist()):
        log_probs = model.log_softmax(encoder_out[row : row + 1, :frames])
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(log_probs.shape[:2]))
        target = labels[row, : label_lengths[row]]
        given = log_probs.transpose(0, 1), target, [log_probs.size(1)], [len(target)]
        expected += torch.nn.functional.ctc_loss(*given, reduction="sum")
    assert float(loss) == pytest.approx(float(expected) / 2, rel=1e-4)
    assert model.argmax(encoder_out[:1]).shape == model.log_softmax(encoder_out[:1]).shape[:2]


@combinations(frames=[1, 5, 15, 16, 17], block=[None, "transformer", "e_branchformer"])
def test_short_audio(block, frames):
    conf = {"e_branchformer": {"input_layer": "conv1d3", "num_blocks": 1, "output_size": 8}}
    model = unit_ctc(256, block, conf.get(block, block and CONVOLUTIONS))
    log_probs = model.log_softmax(torch.randn(1, frames, SIZE))
    assert log_probs.size(1) >= 1 and log_probs.size(2) == 257 and log_probs.isfinite().all()


def test_frames_that_pad_short_audio_are_dropped(no_gradients):
    model = unit_ctc(256, "transformer", CONVOLUTIONS)
    for frames in range(1, 16):
        encoder_out = torch.randn(1, frames, SIZE)
        filled = torch.nn.functional.pad(encoder_out, (0, 0, 0, 16 - frames))
        log_probs, whole = model.log_softmax(encoder_out), model.log_softmax(filled)
        torch.testing.assert_close(log_probs, whole[:, : log_probs.size(1)])
        assert abs(log_probs.size(1) / whole.size(1) - frames / 16) < 1 / whole.size(1)


@refuses(
    ("transfromer", None, "ctc_block: 'transfromer'; allowed: .*conformer"),
    ("transformer", {"layers": 1}, "ctc_block_conf: transformer: .*layers"),
    ("transformer", {"input_layer": "conv3d"}, "ctc_block_conf: transformer: .*conv3d"),
    (None, {"num_blocks": 1}, "ctc_block_conf: allowed with ctc_block"),
)
def test_invalid_blocks_are_refused(block, conf):
    unit_ctc(256, block, conf)
