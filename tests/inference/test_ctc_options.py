"""CTC from options to text: decoding by CTC first, and CTC over other units than the tokens."""

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from experiment import ENCODER, LLAMA, make_experiment, speeches
from refusals import refuses
from stock_experiment import assert_nbest, files, nbest, stock_experiment
from tiny_whisper import read_whisper_experiment, save_tiny_whisper, whisper_experiment
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast
from whisper_training import save_tokenizer_of_bytes

from espnet_medusa.draft.ctc import CTCProposer
from espnet_medusa.draft.mixed import MixedProposer
from espnet_medusa.inference.experiment import TrainedModel
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.whisper.tokens import END, START, make_tokenizer, read_whisper_tokens

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
        memory, _ = model.encode(torch.from_numpy(speech)[None], torch.tensor([len(speech)]))
        log_probs = model.ctc.log_softmax(memory)[0].double()
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


BLOCK = {"input_layer": "conv1d2", "output_size": 16, "num_blocks": 0}
UNITS = {
    "ctc_weight": 0.3, "ctc_units": 256, "report_wer": False, "sym_sos": START, "sym_eos": END,
    "extract_feats_in_collect_stats": False,
}  # fmt: skip
SEARCHES = {
    "greedy": {"search": "greedy", "maxlenratio": -14},
    "beam": {"beam_size": 3, "ctc_weight": 0.0, "nbest": 3, "maxlenratio": -10},
}
DRAFTERS = [
    ({"drafter": "ctc"}, CTCProposer),
    ({"drafter": "ctc", "draft_width": 3, "draft_depth": 8}, CTCProposer),
    ({"drafter": "ctc", "lookahead": "cost"}, CTCProposer),
    ({"drafter": "ctc+heads"}, MixedProposer),
]


@pytest.fixture(scope="module")
def over_units(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tokens = save_tokenizer_of_bytes(folder / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")
    tokenizer.backend_tokenizer.decoder = ByteLevel()
    tokenizer.save_pretrained(folder / "tokenizer")
    whisper = {
        "tokens": tokens, "token_type": "hugging_face", "bpemodel": str(folder / "tokenizer"),
        "preprocessor": "whisper", "preprocessor_conf": {"language": "en"},
        "encoder_conf": ENCODER | {"window": "whisper"},
    }  # fmt: skip
    return [
        make_experiment(folder / "linear", 3, model_conf=UNITS, **whisper),
        make_experiment(
            folder / "block", 4,
            model_conf=UNITS | {"ctc_block": "transformer", "ctc_block_conf": BLOCK}, **whisper,
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("search", SEARCHES)
def test_drafts_of_ctc_units_keep_the_text(over_units, search):
    for experiment in over_units:
        plain = Speech2Text(**files(experiment), draft_depth=0, **SEARCHES[search])
        expected = [nbest(plain(speech)) for speech in speeches(step=9000)]
        for options, kind in DRAFTERS:
            speech2text = Speech2Text(**files(experiment), **options, **SEARCHES[search])
            assert isinstance(speech2text.search.planner.proposer, kind)
            alone = [speech2text(speech) for speech in speeches(step=9000)]
            together = speech2text.decode(speeches(step=9000))
            assert sum(sum(one.statistics.drafted) for one in together) > 0
            for found in (alone, [one.results for one in together]):
                for results, known in zip(found, expected, strict=True):
                    assert_nbest(results, known)


def test_drafters_get_encoder_output_without_padding(over_units):
    speech2text = Speech2Text(**files(over_units[0]), search="greedy", drafter="ctc")
    audio = speech2text.model.batch(speeches(step=9000))
    memory, frames = speech2text.model.encode(audio)
    assert frames.tolist() == [100] * 3
    inputs = speech2text.model.draft_inputs(audio, [[0]] * 3)
    # 16,000 samples a second, 320 a frame, half a second more.
    assert [len(one.memory) for one in inputs] == [38, 66, 94]
    for one, row in zip(inputs, memory, strict=True):
        assert torch.equal(one.memory, row[: len(one.memory)])


@refuses(
    ({}, "ctc_weight: 0.5; allowed: 0.0 .*ctc_units"),
    ({"ctc_weight": 0.3}, "ctc_weight: 0.3; allowed: 0.0 .*ctc_units"),
    ({"ctc_weight": 1.0}, "ctc_weight: 1.0; allowed: 0.0 .*ctc_units"),
    ({"ctc_weight": 0.3, "time_sync": True}, "ctc_weight: 0.3; allowed: 0.0 .*ctc_units"),
)
def test_ctc_scores_over_other_units_are_refused(options, over_units):
    Speech2Text(**files(over_units[0]), **options)
