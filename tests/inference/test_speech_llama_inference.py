"""Speech-LLaMA from experiment folder to text: every strategy, pretrained models, encoders."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from experiment import LLAMA, make_experiment, speeches
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from espnet_medusa.inference.speech2text import Speech2Text

STRATEGIES = Path(__file__).resolve().parents[2] / "conf" / "decode"
SAME_TEXT = ["exact", "tree", "choices"]
OTHERS = [
    "top_m", "typical", "threshold", "beam4_threshold", "beam5", "beam5_ctc0.3", "beam10",
    "bfloat16", "int8", "length_penalty",
]  # fmt: skip
CONFORMER = {
    "encoder": "conformer",
    "encoder_conf": {"output_size": 32, "attention_heads": 2, "linear_units": 32, "num_blocks": 1,
                     "input_layer": "conv2d", "cnn_module_kernel": 7},
    "frontend": "default", "frontend_conf": {"n_fft": 256, "hop_length": 160, "fs": "16k"},
    "input_size": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    return make_experiment(folder, decoder="speech_llama", decoder_conf=LLAMA)


def decode(experiment, name: str, **options):
    options = yaml.safe_load((STRATEGIES / f"{name}.yaml").read_text()) | options
    options |= {"maxlenratio": -12.0}
    if options.get("search", "beam") == "beam" and "nbest" not in options:
        options["nbest"] = 2
    return Speech2Text(experiment.config, experiment.model, **options).decode(speeches())


@pytest.mark.parametrize("name", SAME_TEXT + OTHERS)
def test_strategies(experiment, name):
    decodings = decode(experiment, name)
    for decoding in decodings:
        _, pieces, ids, hypothesis = decoding.results[0]
        assert len(pieces) == len(ids) <= 12 and np.isfinite(float(hypothesis.score))
        assert decoding.statistics.decoder_calls > 0 < decoding.statistics.decoder_seconds
    if name in SAME_TEXT:
        for expected, decoding in zip(decode(experiment, "baseline"), decodings, strict=True):
            assert decoding.results[0][2] == expected.results[0][2]
            assert decoding.statistics.decoder_calls <= expected.statistics.decoder_calls


def test_a_conformer_and_no_heads(tmp_path):
    conf = {"decoder": "speech_llama", "decoder_conf": LLAMA | {"heads": "none"}}
    experiment = make_experiment(tmp_path, **conf, **CONFORMER)
    plain = decode(experiment, "baseline")
    beam = decode(experiment, "beam5", beam_size=1, ctc_weight=0.0)
    assert [one.results[0][2] for one in beam] == [one.results[0][2] for one in plain]


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    tokenizer.train_from_iterator(["one two three", "four five six", "seven"], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast) + 8, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("lora", [None, {"r": 2, "target_modules": ["q_proj", "down_proj"]}])
def test_a_pretrained_language_model_with_its_tokenizer(tmp_path, language_model, lora):
    fast = PreTrainedTokenizerFast.from_pretrained(language_model)
    tokens = [fast.convert_ids_to_tokens(token) for token in range(len(fast))]
    experiment = make_experiment(
        tmp_path, tokens=tokens, decoder="speech_llama",
        decoder_conf={"llama_model": str(language_model), "lora": lora, "heads": "projection",
                      "heads_conf": {"num_heads": 2}},
        model_conf={"ctc_weight": 0.0, "sym_sos": "<s>", "sym_eos": "</s>",
                    "extract_feats_in_collect_stats": False},
        token_type="hugging_face", bpemodel=str(language_model),
    )  # fmt: skip
    written = yaml.safe_load(experiment.config.read_text())["decoder_conf"]
    assert "llama_model" not in written and written["llama_conf"]["tie_word_embeddings"]
    found = decode(experiment, "exact")
    for decoding in found:
        text, _, ids, hypothesis = decoding.results[0]
        assert hypothesis.yseq[0] == fast.bos_token_id
        assert text == fast.decode(ids)
    plain = decode(experiment, "baseline")
    assert [d.results[0][2] for d in found] == [d.results[0][2] for d in plain]
    assert any(d.results[0][2] for d in found)
