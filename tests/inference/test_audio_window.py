"""Models without padding to 30 s (window: audio): batches, searches, drafts, precisions."""

import numpy as np
import pytest
import torch
from experiment import ENCODER, NO_CTC, make_experiment
from stock_experiment import files

from espnet_medusa.inference.speech2text import Speech2Text

LENGTH = {"maxlenratio": -12, "minlenratio": -4}
GREEDY = {"search": "greedy"} | LENGTH
BEAM = {"beam_size": 3, "nbest": 3} | LENGTH
INT8 = {"decoder_precision": "int8"}


@pytest.fixture(scope="module")
def experiments(tmp_path_factory):
    """The same weights, by window."""
    folder = tmp_path_factory.mktemp("windows")
    return {
        window: make_experiment(
            folder / window, seed=5, encoder_conf=ENCODER | {"window": window}, model_conf=NO_CTC
        )
        for window in ("audio", "whisper")
    }


def speeches() -> list[np.ndarray]:
    """The shortest has one frame, the longest fills the window."""
    rng = np.random.default_rng(0)
    lengths = (160, 32000, 5000, 17171, 800)
    return [0.1 * rng.standard_normal(length).astype(np.float32) for length in lengths]


def nbest(model: Speech2Text, some: list[np.ndarray]) -> list[list[tuple[list[int], float]]]:
    return [
        [(ids, float(hypothesis.score)) for _, _, ids, hypothesis in decoding.results]
        for decoding in model.decode(some)
    ]


def assert_same(found, expected):
    assert [[ids for ids, _ in one] for one in found] == [
        [ids for ids, _ in one] for one in expected
    ]
    for one, other in zip(found, expected, strict=True):
        scores = [score for _, score in one], [score for _, score in other]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)


@pytest.mark.parametrize("options", [GREEDY, BEAM, GREEDY | INT8], ids=["greedy", "beam", "int8"])
def test_batches_and_drafts_keep_the_texts(experiments, options):
    plain = Speech2Text(**files(experiments["audio"]), **options, draft_depth=0)
    drafted = Speech2Text(**files(experiments["audio"]), **options, draft_depth=3)
    alone = [nbest(plain, [speech])[0] for speech in speeches()]
    assert len({tuple(ids) for results in alone for ids, _ in results}) > 1
    assert_same(nbest(plain, speeches()), alone)
    assert_same(nbest(drafted, speeches()), alone)
    assert_same([nbest(drafted, [speech])[0] for speech in speeches()], alone)


@torch.no_grad()
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_encoder_output_is_as_long_as_the_audio(experiments, precision):
    memories = {}
    for window, experiment in experiments.items():
        model = Speech2Text(**files(experiment), **GREEDY, encoder_precision=precision)
        memories[window] = model.model.encode(model.model.batch(speeches()))
    (alone, frames), (padded, all_frames) = memories["audio"], memories["whisper"]
    assert frames.tolist() == [1, 100, 16, 54, 3]
    assert all_frames.tolist() == [100] * 5
    assert torch.equal(alone[1], padded[1]), "it fills the window"
    assert not torch.allclose(alone[0, :1], padded[0, :1], atol=1e-3)


@pytest.mark.parametrize("window", ["audio", "whisper"])
def test_a_draft_model_may_have_another_window(experiments, window):
    other = {"audio": "whisper", "whisper": "audio"}[window]
    main = files(experiments[window])
    draft = {"draft_model": str(experiments[other].folder), "drafter": "model", "draft_depth": 3}
    found = nbest(Speech2Text(**main, **GREEDY, **draft), speeches())
    assert_same(found, nbest(Speech2Text(**main, **GREEDY, draft_depth=0), speeches()))
