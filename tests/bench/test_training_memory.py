"""Memory and calls of a training step (K = 10 heads, V = 51865); calls of Speech-LLaMA heads."""

from unittest.mock import Mock

import pytest
import speech_llama_heads
import training_memory
from cases import cases
from tiny import batch, model_of, tiny_decoder

from espnet_medusa.espnet.training.projection_loss import CHUNK_LOGITS

FLOAT_BYTES = 4
SIZES = training_memory.Sizes(hidden_size=32, layers=2, batch_size=4, tokens=30, seconds=1.0)


def memory_of_step(system: str, kind: str = "in chunks") -> training_memory.Allocation:
    model = training_memory.build_model(system, kind, SIZES)
    data = training_memory.random_batch(SIZES)
    return training_memory.allocation_of(lambda: model(**data)[0].backward())


@pytest.fixture(scope="module")
def plain():
    return memory_of_step("finetune")


@pytest.mark.parametrize("system", training_memory.HEADS)
def test_ten_heads_peak_within_one_and_a_half_fine_tuning_steps(system, plain):
    memory = memory_of_step(system)
    assert memory.peak <= 1.5 * plain.peak
    assert memory.largest <= FLOAT_BYTES * CHUNK_LOGITS


def test_logits_are_never_whole(plain):
    """Without chunks the largest tensor holds a head's logits, the peak those of all heads."""
    logits = FLOAT_BYTES * SIZES.batch_size * (SIZES.tokens + 1) * SIZES.vocab_size
    assert logits > FLOAT_BYTES * CHUNK_LOGITS >= plain.largest
    whole, linear = (memory_of_step(system, "whole logits") for system in ("finetune", "linear"))
    assert whole.largest >= logits and linear.largest >= logits
    assert whole.peak > 2 * logits and linear.peak > 11 * logits
    assert plain.peak < whole.peak / 1.3


def test_bench_measures_and_compares():
    measurements = {
        (system, "in chunks"): training_memory.Measurement(peak * 2**20, tensors * 2**20, 0.5)
        for system, peak, tensors in [("finetune", 100, 50), ("linear", 130, 55)]
    }
    assert training_memory.table(measurements).endswith("|linear|130|1.30|55|1.10|0.50|\n")


@cases(("linear", "all_but_last_layer"), ("block", "all"), ("recurrent", "all"))
def test_frozen_layers_run_once_without_gradients(heads, part):
    decoder = tiny_decoder(0, heads, 3, keep_original_last_layer=heads == "linear")
    model = model_of(decoder, ctc_weight=0.0, kl_weight=0.01, freeze_whisper=part).train()
    probed = {"encoder": model.encoder.whisper.layer_norm, "teacher": decoder.original_last_layer}
    probed |= {str(index): layer for index, layer in enumerate(decoder.layers)}
    probed["block"] = decoder.heads.block
    hooks = {}
    for name, module in probed.items():
        if module is not None:
            hooks[name] = Mock(return_value=None)
            module.register_forward_hook(hooks[name])
    model(**batch())[0].backward()
    assert {hook.call_count for hook in hooks.values()} == {1}
    graphs = [name for name, hook in hooks.items() if hook.call_args.args[-1].requires_grad]
    assert graphs == ["1" if part == "all_but_last_layer" else "block"]


def test_calls_of_each_head_type(tmp_path):
    options = ["--shapes", "mini", "--tokens", "2", "3", "--precisions", "float32", "--rounds", "1"]
    speech_llama_heads.main([*options, "--threads", "1", "--output_dir", str(tmp_path)])
    (table,) = tmp_path.glob("*/speech_llama_heads.md")
    rows = [line.split("|")[1:-1] for line in table.read_text().splitlines()[4:]]
    assert [row[:3] for row in rows] == [["mini", "float32", "2"], ["mini", "float32", "3"]]
    for *_, one, projection, latent, ratio in rows:
        assert float(one) > 0
        assert float(ratio) == pytest.approx(float(latent) / float(projection), rel=0.1)
