"""One model in several threads: results are those of one thread, for every option of a call."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import pytest
import s2t_experiment as s2t
import torch
from cases import cases
from drafted_whisper import drafted
from espnet2.tasks.lm import LMTask
from experiment import make_experiment, noise, speeches
from openai_whisper import ctc_whisper, noise_and_silence
from stock_experiment import files, make_untrained, stock_experiment
from tiny import VOCAB_SIZE, random_encoder_out, tiny_decoder
from waiting import full_length

from espnet_medusa.data.threads import PerThread
from espnet_medusa.decoding.runtime import cross_attention
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.cuda_graph import CudaGraphWhisperRuntime
from espnet_medusa.decoding.runtime.precision import Precision
from espnet_medusa.decoding.tree.token_tree import ROOT
from espnet_medusa.inference.s2t import S2TSpeech2Text
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.espnet_transformer import searchable

THREADS, ROUNDS = 3, 2
SAMPLES = [noise_and_silence(seconds, seed) for seed, seconds in enumerate((1.0, 2.5, 1.7))]
ATTEMPTS = {"no_speech_threshold": None, "temperature_increment_on_fallback": None}
WORDS = {"word_timestamps": True, **ATTEMPTS}
CALLS = {  # options of ``Speech2Text.transcribe``
    "words": WORDS,
    "words by CTC": WORDS | {"word_times": "ctc"},
    "hallucinations": WORDS | {"hallucination_silence_threshold": 0.5},
    "samples": {"temperature": 0.8, "best_of": 2, **ATTEMPTS},
    "fallback": {"logprob_threshold": -0.1, "best_of": 2, "temperature_increment_on_fallback": 0.5},
    "repetition": {"fallback_on": "repetition", "compression_ratio_threshold": 1.0},
    "prompt": {"initial_prompt": "names", "carry_initial_prompt": True, **ATTEMPTS},
    "alone": {"condition_on_previous_text": False, "without_timestamps": True, **ATTEMPTS},
    "short": {"without_timestamps": None, "skip_silence": True, **ATTEMPTS},
    "clips": {"clip_timestamps": [0.2, 0.5, 0.6], **WORDS},
    "voice activity": {"vad_filter": True, "vad_parameters": {"threshold": 0.01}, **WORDS},
    "language": {"language": "de", **ATTEMPTS},
    "detection": {"language": "detect", **ATTEMPTS},
}
SIZES = {"attention_heads": 2, "linear_units": 48, "num_blocks": 2}
TRANSFORMER = {
    "encoder": "transformer", "encoder_conf": SIZES | {"output_size": 32, "input_layer": "conv2d2"}
}  # fmt: skip


@pytest.fixture(autouse=True)
def often_switched():
    """Switch between threads a thousand times as often as by default."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    experiment = ctc_whisper(tmp_path_factory.mktemp("whisper"), ctc_units=512)
    return Speech2Text(**files(experiment), search="greedy", ctc_weight=0.0, language="en")


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    sizes = {"pos_enc": "sinusoidal", "embed_unit": 8, "att_unit": 8, "head": 2, "unit": 8}
    lm = {"lm": "transformer", "lm_conf": sizes | {"layer": 1}, "token_type": "char"}
    trained = make_untrained(LMTask, tmp_path_factory.mktemp("lm"), lm)
    return {"lm_train_config": str(trained.config), "lm_file": str(trained.model)}


def assert_alone_and_together(calls, rounds=ROUNDS):
    """Compare results of threads, each of which begins with another call, with those of one."""
    expected, begin = [call() for call in calls], threading.Barrier(THREADS)

    def work(first):
        begin.wait()
        places = [place % len(calls) for place in range(first, first + rounds * len(calls))]
        return [(place, calls[place]()) for place in places]

    with ThreadPoolExecutor(THREADS) as pool:
        for results in [*pool.map(work, range(THREADS))]:
            for place, result in results:
                assert result == expected[place]


def transcriber(speech2text, samples, options):
    def call():
        segments = [asdict(segment) for segment in speech2text.transcribe(samples, **options)]
        counted = speech2text.statistics
        return segments, counted.decoder_calls, counted.tokens, counted.audio_seconds

    return call


def caller(model, speech, **options):
    def call():
        results, counted = nbest_with_text(model(speech, **options)), model.statistics
        return results, counted.decoder_calls, counted.audio_seconds

    return call


def nbest_with_text(results):
    results = results[0] if isinstance(results, tuple) else results
    return [(*entry[:-1], entry[-1].yseq.tolist(), float(entry[-1].score)) for entry in results]


@pytest.mark.parametrize("name", ["words", *full_length("hallucinations")])
def test_words(whisper, name):
    assert_alone_and_together([transcriber(whisper, one, CALLS[name]) for one in SAMPLES])


def test_different_options_at_the_same_time(whisper):
    calls = [transcriber(whisper, SAMPLES[2], options) for options in CALLS.values()]
    assert_alone_and_together(calls, rounds=1)


@pytest.mark.parametrize("beam_size", [None, 2])
def test_a_draft_model(whisper, beam_size):
    model = drafted(whisper, beam_size)
    assert_alone_and_together([caller(model, one) for one in SAMPLES])


DECODINGS = [
    {"search": "greedy"}, {"search": "greedy", "decoder_precision": "int8"},
    {"search": "greedy", "acceptance": "typical"}, {"search": "greedy", "drafter": "ctc+heads"},
    {"beam_size": 3, "nbest": 2, "trace": True}, {"beam_size": 3, "drafter": "ctc"},
]  # fmt: skip
IN_TURN = [*zip(DECODINGS, 3 * ["block", "attending"], strict=True)]
OTHERS = full_length(*zip(DECODINGS, 3 * ["attending", "block"], strict=True))


@pytest.mark.parametrize("case", [*IN_TURN, *OTHERS], ids=str)
def test_heads(case, tmp_path):
    options, heads = case
    conf = {"heads": heads, "heads_conf": {"num_heads": 3}, "num_blocks": 1}
    conf |= {"attention_heads": 2, "linear_units": 48, "max_target_positions": 40}
    experiment = make_experiment(tmp_path / "exp", 1, decoder_conf=conf)
    model = Speech2Text(**files(experiment), **options)
    assert_alone_and_together([caller(model, noise(seed, 9000 + seed)) for seed in range(3)])


@cases(
    ({}, {"search": "greedy"}),
    ({}, {"beam_size": 2, "ctc_weight": 1.0}),  # ESPnet's own search
    (TRANSFORMER, {"beam_size": 2, "ctc_weight": 0.5}),
    ids=str,
)
def test_experiments_of_espnet(changes, options, tmp_path):
    """ESPnet's modules store attention weights and positions in themselves."""
    model = Speech2Text(**files(stock_experiment(tmp_path / "exp", **changes)), **options)
    # Encoders extend their positions for the longest audio so far.
    assert_alone_and_together([caller(model, speech) for speech in speeches(step=1700)])


def test_a_language_model(tmp_path, language_model):
    options = {"beam_size": 3, "ctc_weight": 0.3, "lm_weight": 0.5, **language_model}
    model = Speech2Text(**files(stock_experiment(tmp_path / "exp")), **options)
    assert_alone_and_together([caller(model, speech) for speech in speeches(step=1700)])


def test_s2t(tmp_path):
    """ESPnet's call sets the prompt of language, task and previous text in the shared search."""
    model = S2TSpeech2Text(**s2t.make_s2t_experiment(tmp_path, 3), beam_size=2)
    conditions = [
        {"lang_sym": "<eng>", "predict_time": True},
        {"lang_sym": "<deu>", "task_sym": "<st_deu>"},
        {"text_prev": "abc", "predict_time": False},
    ]
    calls = [
        caller(model, noise(seed, 9000 + 3000 * seed), **condition)
        for seed, condition in enumerate(conditions)
    ]
    assert_alone_and_together(calls)


@pytest.mark.parametrize("build", ["fixed shapes", "positions of ESPnet"])
def test_runtimes(build, tmp_path, monkeypatch):
    """Storages with fixed addresses, and tables that grow, are shared by all searches."""
    if build == "fixed shapes":
        decoder = CudaGraphWhisperRuntime(tiny_decoder(0, "block"), Precision(torch.float32))
    else:
        monkeypatch.setattr(cross_attention, "FIRST_POSITIONS", 4)
        stock = Speech2Text(**files(stock_experiment(tmp_path / "exp")), ctc_weight=0.0)
        decoder = build_runtime(searchable(stock.asr_model.decoder))

    def search(seed, count):
        encoder_out, lengths = random_encoder_out(seed, [7, 5])

        def call():
            state = decoder.start(encoder_out, lengths)
            rows, parents, outputs = [[1], [2]], [[ROOT]] * 2, []
            for step in range(count):
                outputs.append(decoder.extend(state, rows, parents).hidden.tolist())
                rows, parents = [[(seed + step) % VOCAB_SIZE]] * 2, [[step]] * 2
            return outputs

        return call

    assert_alone_and_together([search(seed, 20 + 5 * seed) for seed in range(3)], rounds=6)


def test_each_thread_has_its_own_value():
    class Model:
        result = PerThread(lambda model: "none")

    one, other = Model(), Model()
    one.result = "first"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: one.result).result() == "none"
        pool.submit(setattr, one, "result", "second").result()
    assert (one.result, other.result) == ("first", "none")


def test_alignment_leaves_nothing_on_the_decoder(whisper):
    decoder, during = whisper.asr_model.decoder, []
    layer = type(decoder.layers[0])
    original = layer.decode

    def decode(self, *arguments):
        during.append([len(module._forward_hooks) for module in decoder.modules()])
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "decode", decode)
        assert transcriber(whisper, SAMPLES[0], WORDS)()[0]
    assert during and not np.any(during)
