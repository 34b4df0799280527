"""Functions for words and their times against openai-whisper's."""

import random

import numpy as np
import pytest
import torch
from whisper import timing
from whisper.tokenizer import get_tokenizer

from espnet_medusa.longform.word_times import MEDIAN_WIDTH, cheapest_path, sharpen
from espnet_medusa.whisper.tokens import make_tokenizer, read_whisper_tokens
from espnet_medusa.whisper.transcript import TranscriptText, split_words


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_path_equals_openais(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 9), rng.integers(1, 25)
    costs = rng.standard_normal(shape)
    if seed % 2:  # with ties
        costs = np.round(costs)
    # Without its compiler, which takes longer than the rest.
    monkeypatch.setattr(timing, "backtrace", timing.backtrace.py_func)
    expected = timing.dtw_cpu.py_func(costs)
    assert np.array_equal(np.stack(cheapest_path(costs)), expected)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 9, 40])
def test_sharpening_equals_openais(frames):
    generator = torch.Generator().manual_seed(frames)
    weights = torch.randn(3, 5, frames, generator=generator).softmax(-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    expected = timing.median_filter((weights - mean) / deviation, MEDIAN_WIDTH).nan_to_num()
    assert torch.allclose(sharpen(weights), expected, atol=1e-6)


TOKENIZER = make_tokenizer(51865)
TEXT = TranscriptText(TOKENIZER, read_whisper_tokens(TOKENIZER))
TEXTS = [
    " So it's over, isn't it? Yes.",
    " ¿Qué pasó? «Nada», dijo (él).",
    "那是一个问题。对吗？",
    " naïve café 🙂 end",
    "ภาษาไทย",
    " a -- b ' c",
]


@pytest.mark.parametrize("language", ["en", "es", "zh", "th"])
@pytest.mark.parametrize("text", TEXTS)
def test_splitting_into_words_equals_openais(text, language):
    own = TEXT
    openai = get_tokenizer(True, language=language, task="transcribe")
    tokens, rng = openai.encode(text), random.Random(f"{text} {language}")
    # Cut within characters, too.
    for cut in (0, rng.randrange(len(tokens))):
        some = [*tokens[cut:], openai.eot]
        words = split_words(some, own.decode, own.tokens.end, language)
        assert ([text for text, _ in words], [ids for _, ids in words]) == (
            openai.split_to_word_tokens(some)
        )
