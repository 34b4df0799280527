"""The encoder's window and precision: batches, searches, drafts, encoder output, refusals."""

from pathlib import Path

import pytest
import torch
from cases import cases
from experiment import ENCODER, NO_CTC, make_experiment, noise, speeches
from refusals import refuses
from stock_experiment import assert_decodings, files, nbest, stock_experiment

from espnet_medusa.data.encoder_rows import frame_counts
from espnet_medusa.decoding.runtime.native.library import kernels
from espnet_medusa.inference.speech2text import Speech2Text

LENGTH = {"maxlenratio": -12, "minlenratio": -4}
GREEDY = {"search": "greedy"} | LENGTH
BEAM = {"beam_size": 3, "nbest": 3} | LENGTH
INT8 = {"decoder_precision": "int8"}
MERGED = {"encoder_padding": "merged"}
# The shortest has one frame, the longest fills the window.
SPEECHES = [noise(length, length) for length in (160, 32000, 5000, 17171, 800)]


@pytest.fixture(scope="module")
def experiments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    made = {"stock": stock_experiment(folder / "stock")}
    for name in ("audio", "whisper", "cropped"):
        window = {"window": "audio" if name == "audio" else "whisper"}
        conf = {"encoder_conf": ENCODER | window | {"crop_to_audio": name == "cropped"}}
        made[name] = make_experiment(folder / name, seed=5, **conf, model_conf=NO_CTC)
    return made


def load(experiment, **options) -> Speech2Text:
    return Speech2Text(**files(experiment), **GREEDY | options)


@pytest.mark.skipif(kernels() is None, reason="weights are mapped for the kernels")
@cases((BEAM, torch.float32), (GREEDY, torch.float16), ids=str)
def test_mapped_weights_decode_as_read_ones(options, dtype, experiments, tmp_path):
    weights, file = torch.load(experiments["whisper"].model), str(tmp_path / "model.pth")
    torch.save({name: value.to(dtype) for name, value in weights.items()}, file)
    given = files(experiments["whisper"]) | {"asr_model_file": file} | options | INT8
    read, mapped = (Speech2Text(**given, mapped=mapped) for mapped in (False, True))
    mappings = Path("/proc/self/maps")
    assert file in mappings.read_text()
    mapped.release_weights()
    assert file not in mappings.read_text(), "the file may change from now on"
    assert_decodings(mapped.decode(SPEECHES), [nbest(read(speech)) for speech in SPEECHES])


def encoded(speech2text: Speech2Text):
    return speech2text.model.encode(speech2text.model.batch(SPEECHES))


@cases(
    *(("audio", options, None) for options in (GREEDY, BEAM, GREEDY | INT8)),
    ("audio", GREEDY, "whisper"),
    ("whisper", GREEDY, "audio"),
    *(("whisper", options | MERGED, "whisper") for options in (GREEDY, BEAM)),
    *(("whisper", options | MERGED | INT8, "whisper") for options in (GREEDY, BEAM)),
    *(("cropped", options, "cropped") for options in (GREEDY, BEAM | INT8, GREEDY | MERGED)),
    ids=str,
)
def test_batches_and_drafts_keep_the_texts(window, options, draft, experiments):
    """Drafts of the heads, or of a model with the same window or another one."""
    given, drafts = files(experiments[window]) | options, {"draft_depth": 3}
    if draft is not None:
        drafts |= {"drafter": "model", "draft_model": str(experiments[draft].folder)}
    plain, drafted = (Speech2Text(**given, **own) for own in ({"draft_depth": 0}, drafts))
    alone = [nbest(plain(speech)) for speech in SPEECHES]
    assert len({str(rows) for rows, _ in alone}) > 1
    calls = []
    for speech2text in (plain, drafted):
        found = speech2text.decode(SPEECHES)
        assert_decodings(found, alone)
        calls.append(sum(one.statistics.decoder_calls for one in found))
    assert_decodings([drafted.decode([speech])[0] for speech in SPEECHES], alone)
    assert draft is None or calls[0] > calls[1]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_encoder_output_is_as_long_as_the_audio(experiments, precision, no_gradients):
    (alone, frames), (padded, all_frames), (merged, counts) = (
        encoded(load(experiments[window], **padding, encoder_precision=precision))
        for window, padding in (("audio", {}), ("whisper", {}), ("whisper", MERGED))
    )
    assert frames.tolist() == [1, 100, 16, 54, 3]
    assert frame_counts(all_frames).tolist() == counts.sum(dim=1).tolist() == [100] * 5
    assert (counts > 0).sum(dim=1).tolist() == [50, 100, 63, 96, 51] and merged.size(1) == 100
    assert torch.equal(alone[1], padded[1]), "it fills the window"
    assert not torch.allclose(alone[0, :1], padded[0, :1], atol=1e-3)


def test_a_cropped_output_has_the_frames_of_the_audio(experiments, no_gradients):
    """That of the module; with merged padding, the first rows of the uncropped encoder's output."""
    speech2text, merged = (load(experiments["cropped"], **own) for own in ({}, MERGED))
    batch = speech2text.model.batch(SPEECHES)
    expected, frames = speech2text.asr_model.encode(batch.samples, batch.lengths)
    found, counts = encoded(speech2text)
    assert counts.tolist() == frames.tolist() == [1, 100, 16, 54, 3]
    assert torch.equal(found, expected)
    found, counts = encoded(merged)
    rows, _ = encoded(load(experiments["whisper"], **MERGED))
    assert counts.tolist() == frames.tolist() and found.shape == expected.shape
    for row, whole, count in zip(found, rows, counts, strict=True):
        assert torch.equal(row[:count], whole[:count])


def test_encoder_precision_defaults_to_decoder_precision(experiments):
    exact, separate, follows, given = (
        encoded(load(experiments["audio"], **options))[0]
        for options in ({}, INT8 | {"encoder_precision": "float32"}, INT8,
                        {"encoder_precision": "int8"})
    )  # fmt: skip
    assert separate.equal(exact) and follows.equal(given)
    assert 0 < (given - exact).norm() < 0.05 * exact.norm()
    load(experiments["stock"], **INT8)(speeches(1)[0])


def test_releasing_weights_keeps_texts(experiments):
    experiment = experiments["audio"]
    speech2text = load(experiment, **INT8, draft_model=str(experiment.folder))
    before = [nbest(decoding.results) for decoding in speech2text.decode(SPEECHES)]
    speech2text.release_weights()
    assert_decodings(speech2text.decode(SPEECHES), before)
    if speech2text.model.encoder.packed:
        weights = speech2text.asr_model.encoder.whisper.parameters()
        assert not any(weight.numel() for weight in weights)


def test_a_ctc_weight_without_a_ctc_branch_is_named(experiments, caplog):
    for weight in (0.0, 0.5, 0.3):  # 0.5 is ESPnet's default
        Speech2Text(**files(experiments["audio"]), ctc_weight=weight)
    assert caplog.text.count("ctc_weight") == caplog.text.count("ctc_weight: 0.3: not used") == 1


def test_limits_count_frames_not_rows(experiments):
    limits = {"search": "greedy", "maxlenratio": 0.2, "minlenratio": 0.2}
    given = files(experiments["whisper"]) | limits
    full, merged = (Speech2Text(**given, encoder_padding=one) for one in ("full", "merged"))
    for speech in SPEECHES:
        assert len(merged(speech)[0][3].yseq) == len(full(speech)[0][3].yseq) >= 20


@cases(
    ("whisper", {}, False),
    ("whisper", {"decoder_precision": "int8"}, True),
    ("whisper", {"decoder_precision": "int8", "encoder_precision": "float32"}, False),
    ("whisper", {"decoder_precision": "int8", "encoder_padding": "full"}, False),
    ("whisper", MERGED, True),
    ("cropped", {"decoder_precision": "int8"}, False),
    ids=str,
)
def test_int8_merges_padding_by_default(window, options, merged, experiments):
    if kernels() is None:
        pytest.skip("our kernels are not available")
    speech2text = load(experiments[window], **options)
    assert speech2text.model.encoder.merged == merged
    assert encoded(speech2text)[1].dim() == (2 if merged else 1)
    speech2text.release_weights()
    speech2text(SPEECHES[0])


@refuses(
    ("stock", {"encoder_precision": "int8"},
     "encoder_precision: int8; allowed with encoder: hf_whi"),
    ("stock", MERGED, "encoder_padding: merged"),
    ("audio", MERGED, "encoder_padding: merged; allowed with encoder: hf_whisp"),
    ("whisper", {"encoder_padding": "half"}, "encoder_padding: 'half'"),
)  # fmt: skip
def test_unsupported_options_are_refused(name, options, experiments):
    load(experiments[name], **options)
