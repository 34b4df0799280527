"""A Whisper in Hugging Face format, network and tokenizer, decodes through ESPnet's options."""

import numpy as np
import pytest
import torch
from experiment import make_experiment
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from espnet_medusa.inference.speech2text import Speech2Text

WORDS = ["!", "ab", "cd", "ef", "gh", "ij", "<|startoftranscript|>", "<|endoftext|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small random Whisper as ``save_pretrained`` writes it."""
    path = tmp_path_factory.mktemp("whisper")
    torch.manual_seed(3)
    config = WhisperConfig(
        vocab_size=len(WORDS), d_model=32, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=48,
        decoder_ffn_dim=48, pad_token_id=7, bos_token_id=7, eos_token_id=7,
        decoder_start_token_id=6, max_target_positions=30,
    )  # fmt: skip
    whisper = WhisperForConditionalGeneration(config)
    for parameter in whisper.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    whisper.save_pretrained(path)
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, additional_special_tokens=WORDS[6:]
    ).save_pretrained(path)
    return path


@pytest.mark.parametrize("draft_depth", [0, None])
def test_greedy_text_is_transformers_own(folder, tmp_path, draft_depth):
    experiment = make_experiment(
        tmp_path / "exp",
        tokens=WORDS,
        encoder_conf={"whisper_model": str(folder)},
        decoder_conf={
            "whisper_model": str(folder), "heads": "linear", "heads_conf": {"num_heads": 3},
        },
        model_conf={
            "ctc_weight": 0.0, "sym_sos": WORDS[6], "sym_eos": WORDS[7],
            "extract_feats_in_collect_stats": False,
        },
        token_type="hugging_face",
        bpemodel=str(folder),
        keep_weights=True,
    )  # fmt: skip
    whisper = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    speech2text = Speech2Text(
        asr_train_config=str(experiment.config), asr_model_file=str(experiment.model),
        search="greedy", draft_depth=draft_depth, maxlenratio=-20,
    )  # fmt: skip
    for seed in range(3):
        speech = 0.1 * np.random.default_rng(seed).standard_normal(20000).astype(np.float32)
        features = WhisperFeatureExtractor()(speech, sampling_rate=16000, return_tensors="pt")
        expected = whisper.generate(
            features.input_features, max_new_tokens=20, do_sample=False, num_beams=1,
            suppress_tokens=None, begin_suppress_tokens=None,
        )[0].tolist()  # fmt: skip
        expected = [token for token in expected if token not in (6, 7)]
        [(text, tokens, token_int, _)] = speech2text(speech)
        assert token_int == expected
        assert tokens == [WORDS[token] for token in expected]
        assert text == " ".join(tokens), "id 0 is a token here, not a blank"
