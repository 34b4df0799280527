"""Decoding by CTC first, from options to text: Whisper, ESPnet's transformer and Speech-LLaMA."""

import itertools
import math

import pytest
import torch
from experiment import make_experiment, speeches
from stock_experiment import files, nbest, stock_experiment
from tiny_whisper import save_tiny_whisper

from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.whisper.tokens import make_tokenizer, read_whisper_tokens

OPTIONS = {"search": "greedy", "maxlenratio": -14}
LLAMA = {
    "llama_conf": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                   "intermediate_size": 48},
    "heads": "latent", "heads_conf": {"num_heads": 4},
}  # fmt: skip
MODELS = ["whisper", "stock", "llama"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "whisper": make_experiment(folder / "whisper", 5),
        "stock": stock_experiment(folder / "stock"),
        "llama": make_experiment(folder / "llama", 1, decoder="speech_llama", decoder_conf=LLAMA),
    }


def decode(experiment, **options):
    return Speech2Text(**files(experiment), **OPTIONS | options).decode(speeches())


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
        memory, _ = model.encode(torch.from_numpy(speech)[None], torch.tensor([len(speech)]))
        log_probs = model.ctc.log_softmax(memory)[0].double()
        labels = [label for label, _ in itertools.groupby(log_probs.argmax(-1).tolist())]
        texts.append([label for label in labels if label not in (model.blank_id, model.eos)])
        of_frames = -(log_probs.exp() * log_probs).sum(-1)
        entropies.append(float(of_frames.max()))
    return texts, entropies


@pytest.mark.parametrize("name", MODELS)
def test_lowest_and_highest_thresholds(models, name):
    experiment = models[name]
    texts, _ = ctc_texts(experiment)
    short = max(map(len, texts)) + 1
    plain = decode(experiment, draft_depth=0)
    options = {"maxlenratio": -short}
    alone = decode(experiment, ctc_entropy_threshold=math.inf, **options)
    assert ids(alone) == texts and calls(alone) == [0] * 3
    verified = decode(experiment, ctc_likelihood_threshold=0.0, drafter="ctc", **options)
    assert ids(verified) == texts and calls(verified) == [1] * 3
    exact = decode(experiment, ctc_entropy_threshold=0.0, ctc_likelihood_threshold=1.5)
    assert ids(exact) == ids(plain)
    for decoding in alone:
        text, pieces, _, hypothesis = decoding.results[0]
        assert len(text.split()) == decoding.statistics.words
        assert math.isfinite(float(hypothesis.score)) and hypothesis.score < 0


@pytest.mark.parametrize("name", MODELS)
def test_ctc_texts_below_the_threshold_are_accepted(models, name):
    texts, entropies = ctc_texts(models[name])
    options = {"maxlenratio": -max(map(len, texts)) - 1, "drafter": "ctc"}
    exact = decode(models[name], **options)
    low, middle, high = sorted(entropies)
    for threshold in (0.99 * low, (low + middle) / 2, (middle + high) / 2, 1.01 * high):
        found = decode(models[name], ctc_entropy_threshold=threshold, **options)
        below = [entropy < threshold for entropy in entropies]
        expected = zip(below, texts, ids(exact), strict=True)
        assert ids(found) == [ctc if accepted else exact for accepted, ctc, exact in expected]
        assert [count == 0 for count in calls(found)] == below


def whisper(folder, label: str | int, bias: float):
    """A Whisper whose CTC always has the same best token."""
    tokenizer = make_tokenizer(51865)
    tokenizer.save_pretrained(folder / "tokenizer")
    weights = save_tiny_whisper(folder / "whisper", 51865, hidden_size=16, seed=3)
    experiment = make_experiment(
        folder / "exp",
        tokens=tokenizer.convert_ids_to_tokens(range(51865)),
        encoder_conf={"whisper_model": str(weights), "window": "audio"},
        decoder_conf={"whisper_model": str(weights)},
        model_conf={
            "ctc_weight": 0.3, "report_cer": False, "report_wer": False,
            "extract_feats_in_collect_stats": False,
            "sym_sos": "<|startoftranscript|>", "sym_eos": "<|endoftext|>",
        },
        token_type="hugging_face",
        bpemodel=str(folder / "tokenizer"),
        preprocessor="whisper",
        preprocessor_conf={"language": "de"},
        keep_weights=True,
    )  # fmt: skip
    state = torch.load(experiment.model, weights_only=True)
    token = label if isinstance(label, int) else tokenizer.convert_tokens_to_ids(label)
    state["ctc.ctc_lo.bias"][token] = bias
    torch.save(state, experiment.model)
    return experiment, token


def test_a_whisper_accepts_its_ctc_text(tmp_path):
    experiment, token = whisper(tmp_path, "Ġja", 40.0)
    found = decode(experiment, ctc_entropy_threshold=0.1, maxlenratio=-6)
    assert ids(found) == [[token]] * 3 and calls(found) == [0] * 3
    assert [decoding.results[0][0].strip() for decoding in found] == ["ja"] * 3
    prompt = read_whisper_tokens(make_tokenizer(51865)).prompt("de", "transcribe")
    hypothesis = found[0].results[0][3]
    assert hypothesis.yseq.tolist()[: len(prompt)] == prompt


@pytest.mark.parametrize("kind", ["prompts", "suppressed"])
def test_prompts_and_suppressed_tokens_are_not_accepted(tmp_path, kind):
    """Prompts count as blanks, and a text does not begin with the end symbol."""
    token = getattr(read_whisper_tokens(make_tokenizer(51865)), kind)[5]
    experiment, _ = whisper(tmp_path, token, 40.0)
    plain = decode(experiment, draft_depth=0, maxlenratio=-6)
    sure = {"ctc_entropy_threshold": math.inf, "ctc_likelihood_threshold": 0.0}
    found = decode(experiment, maxlenratio=-6, **sure)
    assert [nbest(one.results)[0] for one in found] == [nbest(one.results)[0] for one in plain]
    assert all(calls(found))
