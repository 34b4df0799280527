"""An experiment of stock ESPnet, without this plugin."""

import pytest
import torch
from espnet2.tasks.asr import ASRTask
from experiment import Experiment, dry_run, save_random


def stock_experiment(folder, encoder="conformer", **changes) -> Experiment:
    sizes = {"attention_heads": 2, "linear_units": 48, "num_blocks": 2}
    config = {
        "encoder": encoder,
        "encoder_conf": {"output_size": 32, "input_layer": "conv2d2", **sizes},
        "decoder": "transformer", "decoder_conf": sizes, "token_type": "char",
        "frontend_conf": {"n_fft": 256, "hop_length": 128, "n_mels": 24},
        "normalize": "utterance_mvn",
        "model_conf": {"ctc_weight": 0.3, "report_cer": False, "report_wer": False},
    } | changes  # fmt: skip
    return make_untrained(ASRTask, folder, config)


def make_untrained(task, folder, config) -> Experiment:
    config = dry_run(task, folder, config)
    torch.manual_seed(0)
    save_random(task, folder, config, 0.3, kept="encoder")
    return Experiment(folder)


def files(experiment):
    return {"asr_train_config": str(experiment.config), "asr_model_file": str(experiment.model)}


def nbest(results):
    """Return ESPnet's results as plain values, without those of intermediate CTC."""
    results = results[0] if isinstance(results, tuple) else results
    rows = [(text, tokens, ids, hyp.yseq.tolist()) for text, tokens, ids, hyp in results]
    return rows, [float(hypothesis.score) for *_, hypothesis in results]


def assert_nbest(results, expected) -> None:
    """Compare results with what ``nbest`` returned; scores differ by rounding."""
    rows, scores = nbest(results)
    assert (rows, scores) == (expected[0], pytest.approx(expected[1], abs=1e-3))


def assert_decodings(decodings, expected) -> None:
    for decoding, known in zip(decodings, expected, strict=True):
        assert_nbest(decoding.results, known)
