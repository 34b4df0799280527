"""Decoders on memories: equal tokens from equal weights, and the whole command."""

import json
from argparse import Namespace
from dataclasses import replace

import choose_ways
import compare
import numpy as np
import pytest
import torch
import warm_python
from cases import cases, combinations
from contestants import make_subjects, worker
from contestants.base import CONTESTANTS, MEMORIES, Result, Setup, Timed
from contestants.ways import BASELINE, BEAM5, CTC, CTC_HEADS, DRAFTERS, GREEDY, HEADS, MODEL, Way
from experiment import make_experiment, training_config
from figures import Inputs, make_rows
from inputs import Utterance, load_model
from refusals import assert_refused, command_refused
from runner import Journal, Measurement

from espnet_medusa.decoding.search import search_options
from espnet_medusa.decoding.search.statistics import DecodingStatistics

TOKENS = 14


@pytest.fixture(scope="module")
def small_shapes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(make_subjects.WHISPER_SHAPES, "tiny", (2, 32, 2))
        patch.setattr(make_subjects, "VOCAB_SIZE", 96)
        patch.setattr(make_subjects, "MEMORY_FRAMES", 20)
        yield


@pytest.fixture(scope="module")
def random_subject(tmp_path_factory, small_shapes):
    return make_subjects.random_subject(tmp_path_factory.mktemp("random"), "tiny", TOKENS, 2)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Random models with heads and different encoders; texts of the first end early."""
    # openai-whisper's feed-forward is four times as wide as its hidden states.
    sizes = {"heads": "recurrent", "linear_units": 128}
    conf = {"decoder_conf": training_config()["decoder_conf"] | sizes}
    models = []
    for seed in (33, 0):
        folder = tmp_path_factory.mktemp(f"exp{seed}")
        make_experiment(folder, seed=seed, **conf).model.rename(folder / "valid.acc_heads.ave.pth")
        models.append(load_model(folder))
    return models


@pytest.fixture(scope="module")
def utterances():
    samples = np.random.default_rng(0).standard_normal((2, 16000)).astype(np.float32) / 10
    short = Utterance("short", samples[1, :12000], 0.75, "ef")
    return [Utterance("long", samples[0], 1.0, "ab cd"), short]


@pytest.fixture(scope="module")
def trained_subject(tmp_path_factory, models, utterances):
    folder = tmp_path_factory.mktemp("trained")
    return make_subjects.trained_subject(folder, "test", models[0], models[0], utterances)


def build(subject, name):
    if name == "ctranslate2":
        pytest.importorskip("ctranslate2")
        make_subjects.convert_to_ctranslate2(subject, "float32")
    return CONTESTANTS[MEMORIES][name].build(subject, "float32", Setup("cpu", 1))


def memories(subject):
    encode = worker.load_encoder(subject, Setup("cpu", 1))
    inputs = [subject.read_input(name) for name in subject.inputs]
    return inputs if encode is None else [encode(samples) for samples in inputs]


def tokens(results):
    return [result.tokens for result in results]


def total(results):
    return sum((DecodingStatistics(**result.counts) for result in results), DecodingStatistics())


PEERS = [name for name in CONTESTANTS[MEMORIES] if name != "ours"]


def assert_equal_tokens(subject, name, search):
    written = []
    for contestant in ("ours", name):
        peer, way = build(subject, contestant), Way(contestant, "float32", search)
        pairs = zip(subject.inputs, memories(subject), strict=True)
        written.append([tokens(peer.decode(way, [key], [memory]))[0] for key, memory in pairs])
    assert written[0] == written[1]
    return written[0]


@pytest.mark.parametrize("name", [name for name in PEERS if name != "transformers assisted"])
@pytest.mark.parametrize("search", [GREEDY, BEAM5])
def test_contestants_write_equal_tokens(random_subject, name, search):
    for written in assert_equal_tokens(random_subject, name, search):
        assert len(written) == TOKENS and len({*written}) > TOKENS // 3  # the text varies


@pytest.mark.parametrize("name", PEERS)
def test_greedy_search_stops_at_the_end_symbol(trained_subject, name):
    for written in assert_equal_tokens(trained_subject, name, GREEDY):
        assert 0 < len(written) < trained_subject.max_tokens


@pytest.mark.parametrize("name", ["transformers", "ctranslate2"])
def test_a_batch_equals_single_inputs(random_subject, name):
    peer, inputs = build(random_subject, name), memories(random_subject)
    way = Way(name, "float32", GREEDY, 2)
    together = peer.decode(way, random_subject.inputs, inputs)
    assert tokens(together) == tokens([peer.decode(way, ["any"], [memory])[0] for memory in inputs])


def test_drafters_have_the_names_of_the_decode_option():
    without_text = {*search_options.DRAFTERS} - {*search_options.WITH_TEXT}
    assert {*DRAFTERS, search_options.CTC_MODEL} == without_text


@combinations(search=[GREEDY, BEAM5], drafter=DRAFTERS)
def test_drafts_change_no_tokens(trained_subject, search, drafter):
    ours, inputs = build(trained_subject, "ours"), memories(trained_subject)
    plain, drafted = (
        ours.decode(Way("ours", "float32", search, 2, drafts), trained_subject.inputs, inputs)
        for drafts in (BASELINE, drafter)
    )
    assert tokens(drafted) == tokens(plain)
    plain, drafted = total(plain), total(drafted)
    assert drafted.nodes / drafted.decoder_calls > plain.nodes / plain.decoder_calls
    if drafter == MODEL:  # the same decoder: every draft is accepted
        assert drafted.decoder_calls < 0.5 * plain.decoder_calls


def ways_of(subject, left_out, *options):
    args = compare.get_parser().parse_args(["--contestants", "ours", *options])
    return choose_ways.make_ways(subject, args, left_out)


def test_ways_with_drafts(trained_subject):
    left_out = {}
    ways = ways_of(trained_subject, left_out, "--searches", "greedy", "--batch_sizes", "1")
    assert [(way.weights, way.drafts) for way in ways] == [
        *(("float32", drafts) for drafts in (BASELINE, *DRAFTERS)),
        ("bfloat16", BASELINE), ("bfloat16", HEADS),
        *(("int8", drafts) for drafts in (BASELINE, *DRAFTERS)),
    ]  # fmt: skip
    ways = ways_of(trained_subject, left_out, "--drafters", MODEL, "--weights", "bfloat16")
    assert {way.drafts for way in ways} == {BASELINE, MODEL} and not left_out
    lacking = replace(trained_subject, draft_conf=None, ctc_blank=None)
    assert {way.drafts for way in ways_of(lacking, left_out)} == {BASELINE, HEADS}
    names = ("by CTC", "by CTC + heads", "by the draft model")
    assert sorted(left_out) == [f"ours, drafts {name}" for name in names]


def measurement(contestant, weights, seconds, drafts=BASELINE):
    """One input that took ``seconds`` in each of two rounds."""
    way = Way(contestant, weights, GREEDY, drafts=drafts)
    counts = DecodingStatistics(decoder_calls=2, nodes=6, tokens=4, drafted=[2, 1], accepted=[1, 1])
    result = Result(tokens=[3, 4, 5], counts=vars(counts) if contestant == "ours" else None)
    timed = [Timed([result], 0.0, seconds + difference) for difference in (-0.5, 0.5)]
    return [Measurement(way, ("a",), number, one) for number, one in enumerate(timed)]


def test_rows_by_hand():
    times = {"float32": (9.0, 4.0, 2.0, 5.0, 3.0), "int8": (8.0, 4.0, 2.0, 1.0, 3.0)}
    journal = Journal()
    for weights, seconds in times.items():
        for drafts, second in zip((BASELINE, HEADS, CTC, CTC_HEADS, MODEL), seconds, strict=True):
            journal.rows += measurement("ours", weights, second, drafts)
    journal.rows += measurement("ctranslate2", "int8", 6.0)
    ways = list(dict.fromkeys(row.way for row in journal.rows))
    rows = make_rows(journal, ways, Inputs(MEMORIES, ["a"]))
    by_way = {(row["contestant"], row["drafts"], row["weights"]): row for row in rows}
    assert by_way["ours", CTC_HEADS, "int8"]["speed"]["value"] == 6
    assert by_way["ctranslate2", "", "int8"]["speed"]["value"] == 1
    assert by_way["ours", HEADS, "float32"]["ms_per_token"][1] == 1000  # with the end symbol
    assert by_way["ours", HEADS, "float32"]["same_tokens"] == 1


def test_encoder_and_ctc_branch_are_the_models(trained_subject, models, utterances):
    ours = build(trained_subject, "ours")
    for memory, utterance in zip(memories(trained_subject), utterances, strict=True):
        with torch.no_grad():
            audio = models[0].model.batch([torch.from_numpy(utterance.speech)])
            expected, _ = models[0].model.encode(audio)
        assert np.array_equal(memory, expected[0].numpy())
        log_probs = models[0].asr_model.ctc.log_softmax(expected)
        assert torch.equal(ours.ctc.log_softmax(expected), log_probs)


def test_a_draft_model_of_another_encoder_or_other_tokens_is_refused(tmp_path, models, utterances):
    make = make_subjects.trained_subject
    assert_refused("encoder", make, tmp_path / "one", "test", *models, utterances)
    token_list = [*reversed(models[0].asr_model.token_list)]
    draft = Namespace(encoder=models[0].encoder, asr_model=Namespace(token_list=token_list))
    assert_refused("tokens", make, tmp_path / "two", "test", models[0], draft, utterances)


def test_the_command_with_random_weights(tmp_path, small_shapes, monkeypatch):
    monkeypatch.setattr("sys.executable", warm_python.executable())  # of contestants' processes
    command = ["--random", "tiny", "--num_memories", 2, "--tokens", 6, "--threads", 1]
    command += ["--contestants", "ours", "transformers assisted", "--rounds", 1, "--nodes", 1, 4]
    command += ["--weights", "float32", "--searches", "greedy", "--batch_sizes", 1, "--no_memory"]
    compare.main([*map(str, command), "--results", str(tmp_path), "--machine", "test"])
    output = tmp_path / "test"
    report = json.loads((output / "random_tiny.json").read_text())
    assert [row["drafts"] for row in report["rows"]] == [BASELINE]
    assert all(row["same_tokens"] == row["inputs"] == 2 for row in report["rows"])
    assert "transformers assisted" in report["left_out"]
    assert [call["nodes"] for call in report["calls"]] == [1, 4]
    text = (output / "comparison.md").read_text()
    assert "random encoder outputs" in text
    assert "### greedy, batch 1" in text and "- Left out: transformers assisted: " in text
    assert (output / "calls.png").stat().st_size


@cases(
    ([], "no subject"),
    (["--whisper", "x"], "--data_dir"),
    (["--random", "tiny", "--seconds", "2"], "--seconds: goes with --whisper"),
    (["--random", "tiny", "--data_dir", "x"], "--data_dir"),
)
def test_unusable_options_are_refused(command, message, capsys):
    with command_refused(capsys, message):
        compare.main(command)


def test_unknown_searches_and_drafters_are_refused(random_subject):
    for option in ("--searches", "--drafters"):
        assert_refused(f"{option} nothing; allowed", ways_of, random_subject, {}, option, "nothing")
