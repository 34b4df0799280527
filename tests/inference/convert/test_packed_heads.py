"""Packed heads: same drafts after attaching, none for other weights, clear errors."""

import pickle
import shutil
import sys
from dataclasses import asdict, replace

import pytest
import torch
import yaml
from heads_folders import NUM_HEADS, SAID, VOCAB_SIZE, pack, tiny_base, with_heads, write_sources
from refusals import Calls, assert_refused, refuses
from safetensors.torch import load_file, save_file

from espnet_medusa.inference.convert.attach_heads import attach_heads
from espnet_medusa.inference.convert.heads_card import read_card, read_front_matter, write_card
from espnet_medusa.inference.convert.names import COUNTS
from espnet_medusa.inference.convert.pack_heads import pack_heads
from espnet_medusa.inference.convert.packed_heads import head_tensors
from espnet_medusa.networks.heads import HEAD_TYPES
from espnet_medusa.networks.whisper.fingerprint import fingerprint

HEAD, BASE_HEAD = "decoder.heads.heads.0.layers.0.weight", "decoder.heads.base.layers.0.weight"
BIAS = "decoder.whisper.layers.1.fc2.bias"


@pytest.mark.parametrize("kind", HEAD_TYPES)
def test_attached_heads_equal_the_packed_ones(tmp_path, kind):
    base = tiny_base()
    trained = with_heads(base, kind)
    pack(tmp_path / "shipped" / "other", with_heads(tiny_base(9), kind), tiny_base(9))
    folder = pack(tmp_path / "shipped" / "tiniest", trained, base)
    attached, said = attach_heads(base, "auto", tmp_path / "shipped")
    assert attach_heads(trained, "auto", tmp_path / "shipped") == (trained, None)
    message = f"trained has {kind} heads of its own; allowed: auto, none"
    assert_refused(message, attach_heads, trained, str(folder))
    assert said == (
        f"tiniest: {kind} heads of openai/whisper-tiniest: 2.40 tokens per call on dev "
        "(2 utterances; accepted per head: 75 50 25 %); by default, they draft in no language but "
        "en, de"
    )
    assert attached.architecture == trained.architecture
    heads = {name: value.half().float() for name, value in head_tensors(trained.weights).items()}
    expected = {**trained.weights, **heads}
    assert attached.weights.keys() == expected.keys() > base.weights.keys()
    assert all(torch.equal(attached.weights[name], value) for name, value in expected.items())
    expected = {"greedy": dict(SAID["draft_conf"]["greedy"]), "beam": {}}
    for defaults in expected.values():
        defaults["languages"] = SAID["language"]
    assert yaml.safe_load(yaml.safe_dump(dict(attached.draft_conf))) == expected
    stored = load_file(folder / "heads.safetensors")
    assert all(stored[name].dtype == torch.float16 for name in heads)


def test_other_weights_get_no_heads_and_a_message(tmp_path):
    base, other = tiny_base(), tiny_base(5)
    folder = pack(tmp_path / "shipped" / "tiniest", with_heads(base, "linear"), base)
    kept, said = attach_heads(other, "auto", tmp_path / "shipped")
    assert kept is other and said.startswith("no heads: base has other weights than")
    assert "openai/whisper-tiniest" in said and str(folder) in said
    assert attach_heads(base, "none", tmp_path / "shipped") == (base, None)
    assert attach_heads(base, "auto", tmp_path / "nothing") == (base, None)
    larger = tiny_base(hidden_size=24)  # no heads are for this size: no message
    assert attach_heads(larger, "auto", tmp_path / "shipped") == (larger, None)
    attached, said = attach_heads(other, str(folder))
    assert attached.architecture.heads == "linear"
    assert "trained on other weights" in said
    message = r"heads.0.layers.0.bias is \(16,\); allowed: \(24,\)"
    assert_refused(message, attach_heads, larger, str(folder))


def test_card_is_filled_in(tmp_path):
    base = tiny_base()
    folder = pack(tmp_path / "heads", with_heads(base, "linear"), base, tags=["speech"])
    said, body = read_front_matter(folder / "README.md")
    assert body == "# Heads\n" and said["tags"] == ["speech"]
    assert said["fingerprint"] == fingerprint(base.weights)
    card = read_card(folder)
    assert card.heads == "linear" and card.heads_conf["num_heads"] == NUM_HEADS
    assert card.whisper == {
        "d_model": 16, "vocab_size": VOCAB_SIZE, "encoder_layers": 1, "decoder_layers": 2,
    }  # fmt: skip
    assert asdict(card.acceptance) == {
        "data": "dev", "utterances": 2, "tokens_per_call": 2.4, "per_head": [0.75, 0.5, 0.25],
    }  # fmt: skip


def changed(checkpoint, name, change):
    weights = dict(checkpoint.weights)
    weights[name] = change(weights[name])
    return replace(checkpoint, weights=weights)


def linear(name=COUNTS, change=lambda value: value, **options):
    return lambda base: changed(with_heads(base, "linear", **options), name, change)


def greedy_drafts(**options):
    return {"draft_conf": {"greedy": options}}


@refuses(
    (lambda base: base, {}, "heads: none; give an experiment that has heads"),
    (linear(BIAS, lambda value: value + 1), {},
     f"1 of .* tensors are not those of base, such as {BIAS}"),
    (linear(HEAD, lambda value: value * 1e6), {}, "not finite"),
    (linear(BASE_HEAD, lambda value: value + 0.1, base_head=True), {},
     "which change Whisper's text"),
    (linear(), greedy_drafts(draft_depth=4), "draft_depth: 4; allowed: at most 3"),
    (linear(), {"license": ""}, "license: ''"),
    (linear(), {"language": "en"}, "language: 'en'"),
    (linear(COUNTS, torch.zeros_like), {}, "draft_vocab_size: 20; this model has no counts"),
    (linear(), greedy_drafts(lookahead="auto"), "draft_conf.greedy: unknown option 'lookahead'"),
)  # fmt: skip
def test_unsuitable_heads_are_refused(make, fields, tmp_path):
    base = tiny_base()
    pack_heads(make(base), base, *write_sources(tmp_path / "sources", **fields), tmp_path)


def test_heads_too_large_or_imprecise_in_float16_are_refused(tmp_path, monkeypatch):
    base = tiny_base()
    # The first weights cancel except for a rest that float16 cannot represent.
    trained = with_heads(base, "projection")
    trained = changed(trained, "decoder.heads.weight", lambda value: 1 + 1e-5 * value)
    message = r"in float16 \d+.\d % of the heads' drafts"
    assert_refused(message, pack, tmp_path / "rounded", trained, base)
    monkeypatch.setattr("espnet_medusa.inference.convert.pack_heads.MAX_BYTES", 2000)
    message, large = "its heads take .* MB; allowed: at most", tmp_path / "large"
    assert_refused(message, pack, large, with_heads(base, "linear"), base)


def edit_tensors(change):
    def edit(folder):
        tensors = load_file(folder / "heads.safetensors")
        change(tensors)
        save_file(tensors, folder / "heads.safetensors")

    return edit


def put_tensor(name, value):
    return edit_tensors(lambda all: all.update({name: value}))


def edit_card(**changes):
    def edit(folder):
        said, body = read_front_matter(folder / "README.md")
        said |= changes
        write_card(folder, {name: each for name, each in said.items() if each is not None}, body)

    return edit


def put(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def front(text):
    return put("README.md", f"---\n{text}\n---\n".encode())


IDS, TIMES = "token_ids", "token_counts"
DAMAGES = {
    "no card": (lambda folder: (folder / "README.md").unlink(), "README.md is missing"),
    "no tensors": (lambda folder: (folder / "heads.safetensors").unlink(), "tensors is missing"),
    "garbage": (put("heads.safetensors", b"\x07garbage" * 9), "no safetensors"),
    "code in tensors": (put("heads.safetensors", pickle.dumps(Calls(sys.exit))), "no safetensors"),
    "wrong shape": (
        put_tensor(HEAD, torch.zeros(16, 8)), rf"{HEAD} is \(16, 8\); allowed: \(16, 16\)",
    ),
    "missing": (edit_tensors(lambda all: all.pop(HEAD)), f"{HEAD} is missing"),
    "foreign": (put_tensor(BIAS, torch.ones(16)), f"{BIAS} does not belong"),
    "integers": (
        put_tensor(HEAD, torch.ones(16, 16, dtype=torch.long)),
        f"{HEAD}: I64; allowed: F16, BF16, F32",
    ),
    "not a number": (put_tensor(HEAD, torch.full((16, 16), torch.nan)), "not finite"),
    "token beyond": (edit_tensors(lambda all: all[IDS][-1:].fill_(VOCAB_SIZE)), "allowed: 0 to 59"),
    "negative token": (edit_tensors(lambda all: all[IDS][:1].fill_(-1)), "allowed: 0 to 59"),
    "twice": (edit_tensors(lambda all: all[IDS][:1].fill_(2)), "allowed: ascending ids"),
    "no times": (edit_tensors(lambda all: all[TIMES].zero_()), "ids, counts above 0"),
    "fewer": (edit_tensors(lambda all: all.update({TIMES: all[TIMES][1:].clone()})), "ascending"),
    "no fingerprint": (edit_card(fingerprint=None), "lacks fingerprint; write the folder with"),
    "kind": (edit_card(heads="hydra"), "heads: 'hydra' is not known"),
    "many heads": (edit_card(heads_conf={"num_heads": 10**9}), "num_heads: 1000000000; allowed"),
    "many layers": (edit_card(heads_conf={"num_heads": 99, "num_layers": 99}), "at most 1000"),
    "other heads": (edit_card(heads_conf={"num_heads": 4}), "heads.3.layers.0.bias is missing"),
    "text": (edit_card(heads_conf={"num_heads": "x"}), "num_heads: 'x'; allowed: a whole number"),
    "flag": (edit_card(heads_conf={"num_heads": 3, "own_block": "x"}), "own_block: 'x'"),
    "number": (edit_card(heads_conf={3: 4}), "heads_conf: unknown option '3'"),
    "lines": (edit_card(base_model="a\nb"), "base_model: 'a.*nb': invalid in a card"),
    "no conf": (edit_card(heads_conf=[3]), r"heads_conf: \[3\]: invalid in a card"),
    "sizes": (edit_card(whisper={"d_model": 16}), "whisper: .*: invalid in a card"),
    "figures": (edit_card(acceptance={"data": "dev"}), "acceptance: lacks utterances"),
    "words": (
        edit_card(acceptance={"data": "dev", "utterances": 2, "tokens_per_call": "much",
                              "per_head": []}),
        "acceptance: tokens_per_call: 'much'; allowed: a number",
    ),
    "depth": (edit_card(**greedy_drafts(draft_depth=-1)), "draft_depth: -1 is too"),
    "depths": (edit_card(**greedy_drafts(draft_depth=[])), "draft_depth: .*a whole num"),
    "search": (edit_card(draft_conf={"best": {}}), "draft_conf: 'best' is not known"),
    "code": (front("heads: !!python/object/apply:os.getcwd []"), "could not determine a constr"),
    "no fields": (put("README.md", b"# Heads\n"), "no fields between two lines of ---"),
    "a list": (front("- heads"), "no fields between two lines of ---"),
    "bytes": (put("README.md", b"---\n\xff\n---\n"), "cannot be read"),
    "nested": (front("[" * 3000), "cannot be read"),
    "long": (front("é" * 33000), "at most 65536 bytes"),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    base = tiny_base()
    return pack(tmp_path_factory.mktemp("good") / "heads", with_heads(base, "linear"), base), base


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folder(tmp_path, good, damage):
    base, (edit, message) = good[1], DAMAGES[damage]
    folder = shutil.copytree(good[0], tmp_path / "heads")
    attach_heads(base, str(folder))
    edit(folder)
    said = assert_refused(message, attach_heads, base, str(folder))
    assert len(said) < 500 and said.startswith(str(folder))


def test_untrusted_heads_cannot_change_the_text(tmp_path, good):
    """They were packed without these checks."""
    folder, base = tmp_path / "heads", good[1]
    pack(folder, with_heads(base, "linear", base_head=True), base)
    put_tensor(BASE_HEAD, torch.full((16, 16), 0.1))(folder)
    assert_refused("base head has residual layers", attach_heads, base, str(folder))
