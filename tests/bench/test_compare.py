"""Contestants write the same tokens from the same weights; replays take what is stated."""

import json
from argparse import Namespace
from dataclasses import replace

import compare
import numpy as np
import pytest
import torch
from compare_report import write_report
from compare_rows import make_result
from experiment import make_experiment, training_config
from inputs import Utterance, load_model
from peers import make_subject, worker
from peers.contestant import CONTESTANTS, Setup
from peers.schedule import Comparison, Measurement, make_ways
from peers.subject import Subject
from peers.way import BEAM5, CTC, CTC_HEADS, DRAFTERS, GREEDY, HEADS, MODEL, PLAIN, REPLAYED, Way

from espnet_medusa.errors import InputError
from espnet_medusa.search import options as search_options

TOKENS = 14
REQUIRED = {"ctranslate2": "ctranslate2", "openai-whisper": "whisper"}
ACCEPTANCE = {GREEDY: [1, 3, 4], BEAM5: [2, 3]}


@pytest.fixture(scope="module")
def small_shapes():
    """A shape that is quickly decoded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(make_subject.WHISPER_SHAPES, "tiny", (2, 32, 2))
        patch.setattr(make_subject, "VOCAB_SIZE", 96)
        patch.setattr(make_subject, "MEMORY_FRAMES", 20)
        yield


@pytest.fixture(scope="module")
def random_subject(tmp_path_factory, small_shapes):
    return make_subject.random_subject(tmp_path_factory.mktemp("random"), "tiny", TOKENS, 2)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model with heads and one with another encoder; random weights, the first ends soon."""
    # openai-whisper's feed-forward is four times as wide as its hidden states.
    sizes = {"heads": "recurrent", "linear_units": 128}
    conf = {"decoder_conf": training_config()["decoder_conf"] | sizes}
    found = []
    for seed in (33, 0):
        folder = tmp_path_factory.mktemp(f"exp{seed}")
        experiment = make_experiment(folder, seed=seed, **conf)
        experiment.model.rename(folder / "valid.acc_heads.ave.pth")
        found.append(load_model(folder))
    return found


@pytest.fixture(scope="module")
def utterances():
    samples = np.random.default_rng(0).standard_normal((2, 16000)).astype(np.float32) / 10
    return [
        Utterance("long", samples[0], 1.0, "ab cd"),
        Utterance("short", samples[1, :12000], 0.75, "ef"),
    ]


@pytest.fixture(scope="module")
def trained_subject(tmp_path_factory, models, utterances):
    folder = tmp_path_factory.mktemp("trained")
    return make_subject.trained_subject(folder, "test", models[0], models[0], utterances)


def build(subject, name):
    """A contestant in this process."""
    if name in REQUIRED:
        pytest.importorskip(REQUIRED[name])
    if name == "ctranslate2":
        make_subject.convert_to_ctranslate2(subject, "float32")
    return CONTESTANTS[name].build(subject, "float32", Setup("cpu", 1, ACCEPTANCE))


def memories(subject):
    encode = worker.load_encoder(subject, Setup("cpu", 1))
    inputs = [subject.read_input(name) for name in subject.inputs]
    return inputs if encode is None else [encode(samples) for samples in inputs]


PEERS = [name for name in CONTESTANTS if name not in ("ours", "transformers compiled")]


@pytest.mark.parametrize("name", [name for name in PEERS if name != "transformers assisted"])
@pytest.mark.parametrize("search", [GREEDY, BEAM5])
def test_everybody_writes_the_same_tokens(random_subject, name, search):
    ours, peer = build(random_subject, "ours"), build(random_subject, name)
    for key, memory in zip(random_subject.inputs, memories(random_subject), strict=True):
        expected = ours.decode(Way("ours", "float32", search), [key], [memory]).tokens
        found = peer.decode(Way(name, "float32", search), [key], [memory]).tokens
        assert found == expected and len(expected[0]) == TOKENS
        assert len({*expected[0]}) > TOKENS // 3  # the text varies


@pytest.mark.parametrize("name", PEERS)
def test_greedy_ends_at_the_end_symbol(trained_subject, name):
    ours, peer = build(trained_subject, "ours"), build(trained_subject, name)
    for key, memory in zip(trained_subject.inputs, memories(trained_subject), strict=True):
        expected = ours.decode(Way("ours", "float32", GREEDY), [key], [memory]).tokens[0]
        found = peer.decode(Way(name, "float32", GREEDY), [key], [memory]).tokens[0]
        assert found == expected and 0 < len(expected) < trained_subject.max_tokens


@pytest.mark.parametrize("name", ["transformers", "ctranslate2", "openai-whisper"])
def test_batches_of_equal_length(random_subject, name):
    peer, inputs = build(random_subject, name), memories(random_subject)
    way = Way(name, "float32", GREEDY, 2)
    together = peer.decode(way, random_subject.inputs, inputs).tokens
    alone = [peer.decode(way, ["any"], [memory]).tokens[0] for memory in inputs]
    assert together == alone


@pytest.mark.parametrize("search", [GREEDY, BEAM5])
def test_replayed_calls_take_what_is_stated(random_subject, search):
    ours, inputs = build(random_subject, "ours"), memories(random_subject)
    names = random_subject.inputs

    def decode(drafts, steps=0.0):
        return ours.decode(Way("ours", "float32", search, 2, drafts, steps), names, inputs)

    plain, drafted, measured = decode(PLAIN), decode(HEADS), decode(REPLAYED)
    assert measured.tokens == plain.tokens == drafted.tokens
    assert measured.excluded_seconds > 0
    steps = measured.tokens_per_call
    assert {*steps} <= {*ACCEPTANCE[search], 1, 2} and max(steps) == max(ACCEPTANCE[search])
    assert measured.calls < plain.calls
    # Calls keep the number of nodes that were drafted.
    assert measured.nodes / measured.calls > 0.6 * drafted.nodes / drafted.calls
    stated = decode(REPLAYED, 2.0)
    assert stated.tokens == plain.tokens and {*stated.tokens_per_call} <= {1, 2}
    assert stated.calls < plain.calls


def test_drafters_have_the_names_of_the_decode_option():
    assert sorted([*DRAFTERS, search_options.CTC_MODEL]) == sorted(search_options.DRAFTERS)


@pytest.mark.parametrize("search", [GREEDY, BEAM5])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafters_write_what_is_written_without(trained_subject, search, drafter):
    ours, inputs = build(trained_subject, "ours"), memories(trained_subject)

    def decode(drafts):
        way = Way("ours", "float32", search, 2, drafts)
        return ours.decode(way, trained_subject.inputs, inputs)

    plain, drafted = decode(PLAIN), decode(drafter)
    assert drafted.tokens == plain.tokens
    assert drafted.nodes / drafted.calls > plain.nodes / plain.calls
    if drafter == MODEL:  # the same decoder: every draft stands
        assert drafted.calls < 0.5 * plain.calls


def test_ctc_drafts_are_the_models_own(trained_subject, models):
    """Where CTC says what greedy search will write, one call is enough."""
    ours, (memory, _) = build(trained_subject, "ours"), memories(trained_subject)
    plain, way = Way("ours", "float32", GREEDY), Way("ours", "float32", GREEDY, drafts=CTC)
    encoded = torch.from_numpy(memory)[None]
    expected = models[0].asr_model.ctc.log_softmax(encoded)
    assert torch.equal(ours.ctc.log_softmax(encoded), expected)
    written = ours.decode(plain, ["long"], [memory]).tokens[0]
    labels = [label for token in written for label in (token, trained_subject.ctc_blank)]

    def say(memory):
        ids = torch.tensor([labels])
        return torch.nn.functional.one_hot(ids, trained_subject.sizes.vocab_size).log()

    ours.ctc.log_softmax = say
    assert ours.decode(way, ["long"], [memory]).calls == 1


def make_plan(**options):
    """A plan of ours as the command makes it."""
    command = [f"--{name}={value}" for name, value in options.items()]
    return compare.make_plan(
        compare.get_parser().parse_args(["--contestants=ours", *command]), None
    )


def test_ways_of_drafting(trained_subject):
    left_out = {}
    found = make_ways(trained_subject, make_plan(searches="greedy", batch_sizes=1), left_out)
    by_weights = {weights: [] for weights in CONTESTANTS["ours"].weights}
    for way in found:
        by_weights[way.weights].append(way.drafts)
    everybody = [PLAIN, *DRAFTERS]
    assert by_weights == {
        "float32": everybody, "bfloat16": [PLAIN, HEADS], "int8": everybody
    }  # fmt: skip
    assert not left_out
    asked = make_ways(trained_subject, make_plan(drafters=MODEL, weights="bfloat16"), left_out)
    assert {way.drafts for way in asked} == {PLAIN, MODEL} and not left_out


def test_drafters_that_a_model_lacks(trained_subject):
    lacking, left_out = replace(trained_subject, draft_conf=None, ctc_blank=None), {}
    found = make_ways(lacking, make_plan(), left_out)
    assert {way.drafts for way in found} == {PLAIN, HEADS}
    names = ("by CTC", "by CTC + heads", "by the draft model")
    assert sorted(left_out) == [f"ours, drafts {name}" for name in names]


def measure(contestant, weights, seconds, drafts=PLAIN, search=GREEDY):
    """One input that took so many seconds."""
    way = Way(contestant, weights, search, drafts=drafts)
    found = [None] * 3 if contestant != "ours" else [2, 6, {1: 1, 3: 1}]
    return Measurement(way, ("a",), 0.0, seconds, [[3, 4, 5]], *found, 0.0)


def test_rows_are_compared_with_the_fastest_drafter(tmp_path, trained_subject):
    times = {"float32": (9.0, 4.0, 2.0, 5.0, 3.0), "int8": (8.0, 4.0, 2.0, 1.0, 3.0)}
    rows = [
        measure("ours", weights, seconds, drafts)
        for weights, found in times.items()
        for drafts, seconds in zip((PLAIN, HEADS, CTC, CTC_HEADS, MODEL), found, strict=True)
    ]
    rows.append(measure("ctranslate2", "int8", 6.0))
    comparison = Comparison([row.way for row in rows], rows)
    result = make_result(replace(trained_subject, inputs=["a"]), comparison, None)
    by_way = {(row["drafts"], row["weights"]): row for row in result["rows"]}
    peer = result["rows"][-1]
    assert (peer["times_ours_float32"][1], peer["times_ours_fastest"][1]) == (3.0, 6.0)
    assert by_way[CTC, "float32"]["times_ours_float32"][1] == 1
    assert by_way[CTC_HEADS, "int8"]["times_ours_fastest"][1] == 1
    assert result["tokens_per_call"] == {GREEDY: {1: 1, 3: 1}}  # of heads, which replays take
    rates = {"bandwidth": {"copy": 10.0}, "gemm": {"float32": 100.0}, "versions": {}}
    machine = {"device": "cpu", "processor": "test", "threads": 1, **rates}
    (tmp_path / "machine.json").write_text(json.dumps(machine))
    (tmp_path / "test.json").write_text(json.dumps(result | {"machine": machine}))
    write_report(tmp_path)
    text = (tmp_path / "comparison.md").read_text()
    for name in ("heads", "CTC", "CTC + heads", "the draft model"):
        assert f"|ours, drafts by {name}|int8|" in text
    assert "|2.00, 3.0|" in text  # tokens and nodes a call
    assert (tmp_path / "speedup.png").stat().st_size


def test_a_subject_is_read_as_it_was_written(trained_subject):
    assert Subject.load(trained_subject.folder) == trained_subject
    assert trained_subject.drafters == [*DRAFTERS]


def test_encoder_is_the_models_own(trained_subject, models, utterances):
    for memory, utterance in zip(memories(trained_subject), utterances, strict=True):
        with torch.no_grad():
            audio = models[0].batch([torch.from_numpy(utterance.speech)])
            expected, _ = models[0].encode(audio)
        assert np.array_equal(memory, expected[0].numpy())


def test_a_draft_on_another_encoder_is_refused(tmp_path, models, utterances):
    with pytest.raises(InputError, match="encoder is not the base's"):
        make_subject.trained_subject(tmp_path / "subject", "test", *models, utterances)


def test_a_draft_of_other_tokens_is_refused(tmp_path, models, utterances):
    model = models[0].asr_model
    tokens = [*reversed(model.token_list)]
    draft = Namespace(encoder=models[0].encoder, asr_model=Namespace(token_list=tokens))
    with pytest.raises(InputError, match="tokens are not the base's"):
        make_subject.trained_subject(tmp_path / "subject", "test", models[0], draft, utterances)


def test_contestants_in_processes(tmp_path, small_shapes, monkeypatch):
    """The whole command, with a contestant that runs and one that is left out."""
    rates = {"bandwidth": {"copy": 10.0}, "gemm": {"float32": 100.0}, "versions": {}}
    machine = {"device": "cpu", "processor": "test", "threads": 1, **rates}
    monkeypatch.setattr(compare, "measure_machine", lambda *_: machine)
    acceptance = tmp_path / "measured.json"
    acceptance.write_text(json.dumps({"tokens_per_call": {GREEDY: {"1": 2, "3": 1}}}))
    command = ["--random", "tiny", "--num_memories", 2, "--tokens", 6, "--threads", 1]
    command += ["--contestants", "ours", "transformers assisted", "--rounds", 1]
    command += [
        "--weights",
        "float32",
        "--searches",
        "greedy",
        "--batch_sizes",
        1,
        "--nodes",
        1,
        4,
        "--no_memory",
    ]
    command += ["--replay", acceptance, "--tokens_per_call", 2, "--results", tmp_path]
    compare.main([*map(str, command), "--machine", "test"])
    result = json.loads((tmp_path / "test" / "random_tiny.json").read_text())
    assert [row["drafts"] for row in result["rows"]] == [PLAIN, REPLAYED, REPLAYED]
    assert all(row["same_tokens"] == row["measurements"] == 2 for row in result["rows"])
    assert "transformers assisted" in result["left_out"]
    assert [call["nodes"] for call in result["calls"]] == [1, 4]
    text = (tmp_path / "test" / "comparison.md").read_text()
    assert "drafts replayed at 2 tokens a call" in text and "random memories" in text
    assert all((tmp_path / "test" / f"{name}.png").stat().st_size for name in ("calls", "roofline"))


def test_unusable_acceptance_is_refused(tmp_path):
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(InputError, match="no tokens_per_call"):
        compare.read_acceptance(tmp_path / "none.json", tmp_path)
    assert compare.read_acceptance(None, tmp_path) is None
