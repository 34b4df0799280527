"""aiola's checkpoints to experiments and back: tensors, logits, losses and texts are aiola's."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from aiola_files import EOS, START, VOCAB_SIZE, make_aiola, save_aiola, save_tokens
from cases import cases
from huggingface_hub import save_torch_state_dict
from refusals import Calls, assert_refused, command_refused, exit_status
from safetensors.torch import load_file, save_file
from tiny import bounds
from transformers import WhisperConfig, WhisperModel
from whole_logits import head_cross_entropy, head_divergence

from espnet_medusa.bin import convert
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.acceptance import build_rule
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.search.search_options import SearchOptions
from espnet_medusa.espnet.task import MedusaASRTask
from espnet_medusa.inference.convert.read_whisper import read_whisper
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.whisper.text import TextOptions

KINDS = [
    {"kind": "base_head"},
    {"kind": "base_head", "num_layers": 2, "original": True},
    {"kind": "medusa_block", "num_heads": 4},
]
NUM_HEADS = 4
CHAIN = DraftShape(NUM_HEADS)
CHOICES = DraftShape(NUM_HEADS, choices=(3, 2, 1, 1))  # [1, 3, 2, 1, 1] of aiola's tree models
MAX_LENGTH = 64


@pytest.fixture
def given(tmp_path):
    """The option for the vocabulary of the models."""
    return "--token_list", save_tokens(tmp_path / "tokens.txt")


def run(*arguments):
    convert.main([*map(str, arguments)])
    return arguments[1]


def refused(capsys, *arguments):
    """Return the one-line error of a refused conversion, which leaves no files."""
    assert exit_status(convert.main, *arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith("convert: error: ")]
    assert lines[-1] == line, "nothing follows, no traceback"
    target = arguments[1]
    assert not target.exists() and not [*target.parent.glob(f".{target.name}.*")]
    return line


def load(experiment):
    files = (str(experiment / name) for name in ("config.yaml", "model.pth"))
    model, args = MedusaASRTask.build_model_from_file(*files)
    return model.eval(), args


@torch.no_grad()
def logits_of(model, features, tokens):
    """(K + 1, 1, L, V) of an experiment's model, the base head first."""
    frames, decoder = torch.tensor([features.size(2)]), model.decoder
    outputs = decoder.hidden_states(*model.encoder.encode(features.transpose(1, 2), frames), tokens)
    heads = torch.stack([head(outputs.head_input) for head in decoder.heads.heads])
    return torch.stack([decoder.logits(outputs.hidden), *decoder.project(heads)])


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_logits_of_every_head(tmp_path, given, options):
    aiola = make_aiola(**options)
    model, args = load(run(save_aiola(tmp_path / "aiola", aiola), tmp_path / "exp", *given))
    features = torch.randn(1, 80, 100, generator=torch.Generator().manual_seed(1))
    prefix = torch.tensor([[START, 39, 1, 2, 3, 5, 8]])
    found, expected = logits_of(model, features, prefix), aiola.logits(features, prefix)
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (model.sos, model.eos) == (START, EOS)
    assert "whisper_model" not in {**args.encoder_conf, **args.decoder_conf}
    original = model.decoder.original_last_layer
    assert (original is not None) == options.get("original", False)
    if original is not None:
        expected = aiola.whisper_layer.state_dict()
        assert all(torch.equal(original.state_dict()[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_converting_there_and_back_gives_the_same_file(tmp_path, given, options, dtype):
    aiola = make_aiola(**options)
    tensors = {name: value.to(dtype) for name, value in aiola.tensors().items()}
    folder = save_aiola(tmp_path / "aiola", aiola, tensors)
    run(folder, tmp_path / "exp", *given)
    back = run(tmp_path / "exp", tmp_path / "back", "--to", "aiola")
    found = load_file(back / "model.safetensors")
    torch.testing.assert_close(found, tensors, rtol=0, atol=0)  # of the same dtype
    for name in ("config.json", "generation_config.json"):
        theirs, ours = (json.loads((place / name).read_text()) for place in (folder, back))
        assert ours == theirs, name


def test_decode_configs_match_aiolas_decoding(tmp_path, given):
    experiment = run(save_aiola(tmp_path / "aiola", make_aiola()), tmp_path / "exp", *given)
    paths = (experiment / "conf").iterdir()
    configs = {path.stem: yaml.safe_load(path.read_text()) for path in paths}
    common = {
        "search": "greedy", "suppress_tokens": [3, 5], "begin_suppress_tokens": [7],
        "forced_prefix": [39],
    }  # fmt: skip
    drafts = common | {"medusa_choices": [1, 3, 2, 1]}
    typical = {"acceptance": "typical", "typical_epsilon": 0.1, "typical_alpha": 0.4}
    assert configs == {
        "decode_baseline": common | {"draft_depth": 0},
        "decode_exact": drafts | {"acceptance": "exact"},
        "decode_typical": drafts | typical,
    }
    texts = {}
    for name, options in configs.items():
        speech2text = Speech2Text(experiment / "config.yaml", experiment / "model.pth", **options)
        generator = torch.Generator().manual_seed(0)
        [(text, _, ids, _)] = speech2text(torch.randn(16000, generator=generator))
        assert not {3, 5} & {*ids} and text.split()[0].startswith("w")
        texts[name] = text
    assert texts["decode_exact"] == texts["decode_baseline"]


def test_weights_from_other_file_formats_are_the_same(tmp_path, given, capsys):
    aiola = make_aiola(kind="medusa_block")
    tensors, experiments = aiola.tensors(), []
    for form in ("whole", "shards", "pickled"):
        folder = save_aiola(tmp_path / form, aiola)
        if form != "whole":
            (folder / "model.safetensors").unlink()
        if form == "shards":
            save_torch_state_dict(tensors, folder, max_shard_size="20KB")
            assert len([*folder.glob("*.safetensors")]) > 2
        if form == "pickled":
            torch.save(tensors, folder / "pytorch_model.bin")
        experiments.append(run(folder, tmp_path / f"exp_{form}", *given))
    whole, *others = (torch.load(folder / "model.pth") for folder in experiments)
    for other in others:
        torch.testing.assert_close(other, whole, rtol=0, atol=0)
    torch.save(Calls(sys.exit), folder / "pytorch_model.bin")  # code that must not run
    assert "not a checkpoint with weights only" in refused(capsys, folder, tmp_path / "exp", *given)


def test_a_projection_saved_twice_must_equal_the_embedding(tmp_path, given, capsys):
    aiola = make_aiola()
    embedding = aiola.whisper_model.model.decoder.embed_tokens.weight.detach()
    name = "whisper_model.proj_out.weight"
    twice = aiola.tensors() | {name: embedding.clone()}
    run(save_aiola(tmp_path / "twice", aiola, twice), tmp_path / "a", *given)
    folder = save_aiola(tmp_path / "untied", aiola, aiola.tensors() | {name: embedding + 1})
    message = f"{name} differs from the token embedding; allowed: tied"
    assert message in refused(capsys, folder, tmp_path / "b", *given)


@cases(
    ({"medusa_heads_type": "hydra"}, "medusa_heads_type: 'hydra' is not known"),
    ({"medusa_num_heads": None}, "medusa_num_heads is missing"),
    ({"medusa_num_heads": "3"}, "medusa_num_heads: '3'; allowed: a whole number"),
    ({"medusa_num_heads": 2, "medusa_choices": None}, "medusa_heads.3.0.linear.weight is not"),
    ({"medusa_num_heads": 4}, "medusa_heads.4.0.linear.weight is missing"),
    ({"medusa_choices": [1, 0, 1, 1]}, "medusa_choices: [1, 0, 1, 1]; allowed: 1 for the"),
    ({"medusa_choices": [1, 1, 1, 1, 1]}, "at most 3 numbers"),
    ({"decoder_layers": 3}, "whisper_model.model.decoder.layers.2"),
    ({"d_model": 24}, "is (16, 16), the model's (24, 24)"),
    ({"activation_function": "relu"}, "activation_function: relu; allowed: gelu"),
    ({"eos_token_id": ["a"]}, "config.json: eos_token_id: ['a']; allowed: a token id, or a list"),
    ({"generation": {"posterior_threshold": 2}}, "typical_epsilon: 2"),
    ({"generation": {"posterior_alpha": "high"}}, "posterior_alpha: 'high'; allowed: a number"),
    ({"generation": {"suppress_tokens": [1, "a"]}}, "suppress_tokens: [1, 'a']; allowed"),
    ({"generation": {"exponential_decay_length_penalty": 5}}, "penalty: 5; allowed: [start"),
)
def test_invalid_config_is_refused(changes, message, tmp_path, given, capsys):
    folder = save_aiola(tmp_path / "aiola", make_aiola(), **{"generation": {"a": 1}, **changes})
    assert message in refused(capsys, folder, tmp_path / "exp", *given)


def test_missing_sizes_come_from_the_base_model(tmp_path, given, capsys):
    aiola = make_aiola()
    aiola.whisper_model.config.save_pretrained(tmp_path / "base")
    lacking = dict.fromkeys(["encoder_attention_heads", "max_source_positions"])
    base = {"whisper_model_name": str(tmp_path / "base")}
    named = save_aiola(tmp_path / "named", aiola, **base, **lacking)
    _, args = load(run(named, tmp_path / "exp", *given))
    assert args.encoder_conf["attention_heads"] == 2
    assert args.encoder_conf["max_source_positions"] == 50
    unnamed = save_aiola(tmp_path / "unnamed", aiola, whisper_model_name=None, **lacking)
    _, args = load(run(unnamed, tmp_path / "exp2", *given, "--whisper_model", tmp_path / "base"))
    assert args.encoder_conf["attention_heads"] == 2
    line = refused(capsys, unnamed, tmp_path / "exp3", *given)
    assert "encoder_attention_heads, max_source_positions missing" in line
    assert "give --whisper_model" in line


def test_a_downloaded_model_may_not_name_a_local_folder(tmp_path, monkeypatch):
    aiola = make_aiola()
    aiola.whisper_model.config.save_pretrained(tmp_path / "base")
    changes = {"whisper_model_name": str(tmp_path / "base"), "encoder_attention_heads": None}
    named = save_aiola(tmp_path / "a", aiola, **changes)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(named))
    message = "someone/a: config.json: whisper_model_name: '.*base'"
    assert_refused(message, read_whisper, "someone/a", TextOptions())


def test_a_missing_vocabulary_and_an_existing_target_are_errors(tmp_path, given, capsys):
    folder = save_aiola(tmp_path / "aiola", make_aiola())
    line = refused(capsys, folder, tmp_path / "exp")
    assert f"vocab_size: {VOCAB_SIZE}" in line and "give --tokenizer FOLDER" in line
    short = save_tokens(tmp_path / "short.txt", 39)
    line = refused(capsys, folder, tmp_path / "exp", "--token_list", short)
    assert "39 lines, 39 different; the model has 40 tokens" in line
    (tmp_path / "there").mkdir()
    with command_refused(capsys, "exists; remove it"):
        run(folder, tmp_path / "there", *given)
    assert not [*(tmp_path / "there").iterdir()], "an existing target is not overwritten"
    # The folder's own tokenizer is used and copied.
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    experiment = run(folder, tmp_path / "first", *given)
    name = "tokenizer.json"
    (folder / name).write_bytes((experiment / "tokenizer" / name).read_bytes())
    experiment = run(folder, tmp_path / "exp")
    assert (experiment / "tokenizer" / name).read_bytes() == (folder / name).read_bytes()
    assert (experiment / "tokens.txt").read_text() == given[1].read_text()
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": "x.Y"}}')
    assert "auto_map requires code" in refused(capsys, folder, tmp_path / "exp2")


def test_the_prompt_is_that_of_the_generation_config(tmp_path, given):
    generation = {"language": "german", "task": "translate"}
    folder = save_aiola(tmp_path / "aiola", make_aiola(), generation=generation)
    prompt = read_whisper(str(folder), TextOptions(token_list=given[1])).prompt
    assert (prompt.language, prompt.task) == ("de", "translate")


class Golden:
    """An aiola model as an experiment of ours, and the output of aiola's code."""

    def __init__(self, source: Path, kind: str, folder: Path):
        facts = json.loads((source / "facts.json").read_text())
        self.tokens, self.labels, self.labels_short = (
            torch.tensor(facts[name]) for name in ("tokens", "labels", "labels_short")
        )
        self.facts = facts[kind]
        self.weights = load_file(source / "decoder.safetensors")
        self.encoder_out = self.weights.pop("memory")
        self.weights |= load_file(source / f"{kind}.safetensors")
        self.logits = self.weights.pop("logits")
        config = json.loads((source / "config.json").read_text())
        config["medusa_heads_type"] = {"linear": "base_head", "block": "medusa_block"}[kind]
        encoder = WhisperModel(WhisperConfig.from_dict(config)).encoder  # random, not used
        prefix = "whisper_model.model.encoder."
        self.weights |= {prefix + name: value for name, value in encoder.state_dict().items()}
        save_file(self.weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        shutil.copy(source / "generation_config.json", folder)
        tokens = save_tokens(folder / "tokens.txt", 211)
        self.experiment = run(folder, folder / "exp", "--token_list", tokens)
        options = yaml.safe_load((self.experiment / "conf" / "decode_exact.yaml").read_text())
        files = (self.experiment / name for name in ("config.yaml", "model.pth"))
        self.decoder = Speech2Text(*files, **options).asr_model.decoder

    @torch.no_grad()
    def logits_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """(K + 1, U, L, V) of the first U utterances, the base head first; heads as in searches."""
        encoder_out = self.encoder_out[: len(tokens)]
        lengths = torch.full((len(tokens),), encoder_out.size(1))
        outputs = self.decoder.hidden_states(encoder_out, lengths, tokens)
        proposer = build_runtime(self.decoder).proposer()
        found = [self.decoder.logits(outputs.hidden)]
        states = proposer.start_from(outputs.head_input.flatten(0, 1))
        for _ in range(NUM_HEADS):
            # Parallel heads ignore the tokens.
            states = proposer.advance(states, torch.zeros(tokens.numel()).long())
            found.append(proposer.logits(states).unflatten(0, tokens.shape))
        return torch.stack(found)


@pytest.fixture(scope="module", params=["linear", "block"])
def golden(request, aiola_golden, tmp_path_factory):
    return Golden(aiola_golden, request.param, tmp_path_factory.mktemp(request.param))


def test_logits_of_every_head_equal_aiolas(golden):
    found = golden.logits_of(golden.tokens)
    torch.testing.assert_close(found[:, 0], golden.logits, rtol=0, atol=1e-4)


def shifted(labels: torch.Tensor) -> torch.Tensor:
    """Return the decoder's input: start token and labels, padded with the end token."""
    read = labels[:, :-1].masked_fill(labels[:, :-1] == -100, 200)
    return torch.nn.functional.pad(read, (1, 0), value=201)


def ours(labels: torch.Tensor) -> torch.Tensor:
    return labels.masked_fill(labels == -100, -1)


@pytest.mark.parametrize("kind", ["", "_short"])
def test_cross_entropy_of_every_head(golden, kind):
    """Short labels leave late heads without loss."""
    labels, expected = getattr(golden, f"labels{kind}"), golden.facts[f"cross_entropy{kind}"]
    logits = golden.logits_of(shifted(labels))
    found = [float(head_cross_entropy(row, ours(labels), k)) for k, row in enumerate(logits)]
    assert found == pytest.approx(expected + [0.0] * (len(logits) - len(expected)), abs=1e-4)


def test_divergence_of_every_head_but_for_padding(golden):
    """aiola counts padded positions: both agree without padding, with padding ours is smaller."""
    logits, labels = golden.logits_of(shifted(golden.labels)), ours(golden.labels)
    nothing_padded = labels.clamp(min=0)
    heads = enumerate(logits)
    found = [float(head_divergence(row, logits[0], nothing_padded, head)) for head, row in heads]
    assert found == pytest.approx(golden.facts["divergence"], rel=1e-5, abs=1e-4)
    assert 0 < float(head_divergence(logits[1], logits[0], labels, 1)) < found[1]


def search(golden, sample, rule, eos, shape=CHAIN):
    prompt = torch.tensor([[201, 210]])
    encoder_out = golden.encoder_out[sample : sample + 1]
    decoder = build_runtime(golden.decoder)
    greedy = greedy_search(decoder, rule, Constraints(eos), decoder.proposer(), shape)
    return greedy(encoder_out, torch.tensor([150]), prompt, bounds([MAX_LENGTH - 2]))[0].tokens


@pytest.mark.parametrize("shape", [CHAIN, CHOICES], ids=["chain", "choices"])
@pytest.mark.parametrize("sample", [0, 1])
def test_exact_greedy_text(golden, sample, shape):
    rule = build_rule(SearchOptions(acceptance="exact"))
    expected = golden.facts["greedy"][sample][2:]
    assert search(golden, sample, rule, eos=200, shape=shape) == expected
    # aiola stops up to num_heads tokens early, but writes the same until then.
    theirs = golden.facts["exact"][sample][2:]
    assert theirs == expected[: len(theirs)]


@pytest.mark.parametrize("sample", [0, 1])
def test_the_end_symbol_stops_and_typical_text_starts_as_aiolas(golden, sample):
    exact, typical = (build_rule(SearchOptions(acceptance=x)) for x in ("exact", "typical"))
    eos = golden.facts["eos"][sample]
    assert [*search(golden, sample, exact, eos), eos] == golden.facts["greedy_eos"][sample][2:]
    # aiola drafts from other nodes; the text is the same while drafts agree.
    assert search(golden, sample, typical, eos=200)[:4] == golden.facts["typical"][sample][2:6]


def test_converting_back_to_aiolas_format_changes_nothing(golden, tmp_path):
    back = run(golden.experiment, tmp_path / "back", "--to", "aiola")
    found = load_file(back / "model.safetensors")
    torch.testing.assert_close(found, golden.weights, rtol=0, atol=0)
