"""Decoding by CTC first, from options to text."""

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from experiment import LLAMA, make_experiment, speeches
from stock_experiment import files, nbest, stock_experiment
from tiny_whisper import read_whisper_experiment, save_tiny_whisper, whisper_experiment

from espnet_medusa.inference.experiment import TrainedModel
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.whisper.tokens import make_tokenizer, read_whisper_tokens

OPTIONS = {"search": "greedy", "maxlenratio": -14}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "whisper": make_experiment(folder / "whisper", 5),
        "stock": stock_experiment(folder / "stock"),
        "llama": make_experiment(folder / "llama", 1, decoder="speech_llama", decoder_conf=LLAMA),
    }


def decode(model, **options):
    given = {"trained": model} if isinstance(model, TrainedModel) else files(model)
    return Speech2Text(**given, **OPTIONS | options).decode(speeches())


def ids(decodings):
    return [decoding.results[0][2] for decoding in decodings]


def calls(decodings):
    return [decoding.statistics.decoder_calls for decoding in decodings]


@torch.no_grad()
def ctc_texts(experiment):
    """CTC's text and highest entropy of each utterance, from ESPnet's model."""
    model = Speech2Text(**files(experiment), **OPTIONS, draft_depth=0).asr_model
    texts, entropies = [], []
    for speech in speeches():
        encoder_out, _ = model.encode(torch.from_numpy(speech)[None], torch.tensor([len(speech)]))
        log_probs = model.ctc.log_softmax(encoder_out)[0].double()
        labels = [label for label, _ in itertools.groupby(log_probs.argmax(-1).tolist())]
        texts.append([label for label in labels if label not in (model.blank_id, model.eos)])
        of_frames = -(log_probs.exp() * log_probs).sum(-1)
        entropies.append(float(of_frames.max()))
    return texts, entropies


@pytest.mark.parametrize("name", ["whisper", "stock", "llama"])
def test_ctc_texts_below_the_threshold_are_accepted(models, name):
    texts, entropies = ctc_texts(models[name])
    options = {"maxlenratio": -max(map(len, texts)) - 1, "drafter": "ctc"}
    exact = decode(models[name], **options)
    verified = decode(models[name], ctc_likelihood_threshold=0.0, **options)
    assert ids(verified) == texts and calls(verified) == [1] * 3
    low, middle, high = sorted(entropies)
    for threshold in (0.99 * low, (low + middle) / 2, (middle + high) / 2, 1.01 * high):
        found = decode(models[name], ctc_entropy_threshold=threshold, **options)
        below = [entropy < threshold for entropy in entropies]
        expected = zip(below, texts, ids(exact), strict=True)
        assert ids(found) == [ctc if accepted else exact for accepted, ctc, exact in expected]
        assert [count == 0 for count in calls(found)] == below
    for decoding in found:
        text, _, _, hypothesis = decoding.results[0]
        assert len(text.split()) == decoding.statistics.words
        assert -math.inf < hypothesis.score < 0


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """Return a function that gives a Whisper's CTC the same best token everywhere."""
    folder = tmp_path_factory.mktemp("whisper")
    weights = save_tiny_whisper(folder / "whisper", 51865, hidden_size=16, seed=3)
    experiment = whisper_experiment(folder, weights, window="audio", ctc_weight=0.3)
    trained = read_whisper_experiment(experiment)

    def with_best(token: int) -> TrainedModel:
        model = copy.deepcopy(trained.asr_model)
        model.ctc.ctc_lo.bias.data[token] = 40.0
        return replace(trained, asr_model=model)

    return with_best


def test_a_whisper_accepts_its_ctc_text(whisper):
    token = make_tokenizer(51865).convert_tokens_to_ids("Ġja")
    found = decode(whisper(token), ctc_entropy_threshold=0.1, maxlenratio=-6)
    assert ids(found) == [[token]] * 3 and calls(found) == [0] * 3
    assert [decoding.results[0][0].strip() for decoding in found] == ["ja"] * 3
    prompt = read_whisper_tokens(make_tokenizer(51865)).prompt("de", "transcribe")
    assert found[0].results[0][3].yseq.tolist()[: len(prompt)] == prompt


@pytest.mark.parametrize("kind", ["prompts", "suppressed"])
def test_prompts_and_suppressed_tokens_are_not_accepted(whisper, kind):
    """Prompts count as blanks, and a text does not begin with the end symbol."""
    trained = whisper(getattr(read_whisper_tokens(make_tokenizer(51865)), kind)[5])
    plain = decode(trained, draft_depth=0, maxlenratio=-6)
    sure = {"ctc_entropy_threshold": math.inf, "ctc_likelihood_threshold": 0.0}
    found = decode(trained, maxlenratio=-6, **sure)
    assert [nbest(one.results)[0] for one in found] == [nbest(one.results)[0] for one in plain]
    assert all(calls(found))
