"""Drafters, from options to text: all keep the text; unsupported ones are refused."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
from cases import cases
from experiment import DECODER, ENCODER, NO_CTC, TOKENS, make_experiment, speeches
from recorded_calls import record_calls
from refusals import assert_refused, refuses
from stock_experiment import assert_decodings, files, nbest, stock_experiment
from tiny_whisper import save_tiny_whisper, save_tokenizer_of_bytes
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

from espnet_medusa.decoding.draft.ctc import CTCProposer
from espnet_medusa.decoding.draft.mixed import MixedProposer
from espnet_medusa.decoding.draft.model import DraftModelProposer
from espnet_medusa.decoding.search.drafters import hide_tokens
from espnet_medusa.decoding.search.drafting.auto_depth import AutoDepth
from espnet_medusa.decoding.search.drafting.lookahead import ByAcceptance
from espnet_medusa.decoding.tree.proposer import HeadsProposer
from espnet_medusa.inference.audio_batch import AudioBatch
from espnet_medusa.inference.decoding import Decoding
from espnet_medusa.inference.draft_model import open_draft_model
from espnet_medusa.inference.experiment import open_whisper_model
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.whisper.log_mel import LogMel
from espnet_medusa.networks.whisper.tokens import (
    END,
    START,
    WhisperTokens,
    make_tokenizer,
    read_whisper_tokens,
)
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

UNITS = NO_CTC | {"ctc_weight": 0.3, "ctc_units": 256, "report_wer": False}
UNITS |= {"sym_sos": START, "sym_eos": END}
BLOCK = {"input_layer": "conv1d2", "output_size": 16, "num_blocks": 0}
STEPS = {"units": 9000, "units, block": 9000}  # longer audio, in samples; others: 3700
SEARCHES = {
    "greedy": {"search": "greedy", "maxlenratio": -14},
    "beam": {"beam_size": 3, "ctc_weight": 0.0, "nbest": 3, "maxlenratio": -10},
    "beam with CTC": {"beam_size": 4, "ctc_weight": 0.4, "nbest": 2, "maxlenratio": -10},
}
MODEL = {"drafter": "model", "draft": "draft"}
NOWHERE = {"drafter": "model", "draft_model": "./nowhere"}
MEASURED = {"lookahead": "auto"}
DRAFTERS = [
    ("main", {"drafter": "heads"}, HeadsProposer),
    ("main", {"drafter": "ctc"}, CTCProposer),
    ("main", {"drafter": "ctc+heads"}, MixedProposer),
    ("main", {"drafter": "ctc+heads", "ctc_draft_share": 0.9, "draft_width": 5}, MixedProposer),
    ("main", MODEL, DraftModelProposer),
    ("main", {"drafter": "model", "draft": "stock", "lookahead": "auto"}, DraftModelProposer),
    ("main", {"drafter": "model", "draft": "main", "lookahead": "acceptance"}, DraftModelProposer),
    ("main", MODEL | {"drafter": "ctc+model"}, MixedProposer),
    ("main", {"drafter": "ctc+model", "draft": "other tokens"}, MixedProposer),
    ("stock", {"drafter": "ctc"}, CTCProposer),
    ("stock", {"drafter": "ctc", "lookahead": "acceptance"}, CTCProposer),
    ("main", {"drafter": "model", "draft": "other tokens"}, DraftModelProposer),
    ("stock", {"draft": "stock draft"}, DraftModelProposer),
    ("stock", {"draft": "draft", "draft_depth": 2, "draft_width": 2}, DraftModelProposer),
    *((main, {"drafter": "ctc"} | options, kind) for main in ("units", "units, block")
      for options, kind in (
        ({}, CTCProposer), ({"draft_width": 3, "draft_depth": 8}, CTCProposer),
        ({"lookahead": "auto"}, CTCProposer), ({"drafter": "ctc+heads"}, MixedProposer),
    )),
]  # fmt: skip


def models_over_units(folder):
    """Models with CTC over other units than the tokens, after a linear layer and a block."""
    tokens = save_tokenizer_of_bytes(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.backend_tokenizer.decoder = ByteLevel()
    tokenizer.save_pretrained(folder)
    whisper = {
        "tokens": tokens, "token_type": "hugging_face", "bpemodel": str(folder),
        "preprocessor": "whisper", "preprocessor_conf": {"language": "en"},
        "encoder_conf": ENCODER | {"window": "whisper"},
    }  # fmt: skip
    block = UNITS | {"ctc_block": "transformer", "ctc_block_conf": BLOCK}
    return {
        "units": make_experiment(folder / "linear", 3, model_conf=UNITS, **whisper),
        "units, block": make_experiment(folder / "block", 4, model_conf=block, **whisper),
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Main models and draft models; those without units or "other tokens" have the same tokens."""
    folder = tmp_path_factory.mktemp("models")
    return models_over_units(folder / "units") | {
        "main": make_experiment(folder / "main", 5),
        "draft": make_experiment(
            folder / "draft", 1, encoder_conf=ENCODER | {"output_size": 16, "linear_units": 24},
            decoder_conf=DECODER | {"linear_units": 24}, model_conf=NO_CTC,
        ),
        "128 bins": make_experiment(
            folder / "bins", 2, encoder_conf=ENCODER | {"num_mel_bins": 128}, decoder_conf=DECODER
        ),
        "no ctc": make_experiment(folder / "none", model_conf=NO_CTC),
        "other tokens": make_experiment(folder / "tokens", tokens=[*TOKENS[:5], "k", *TOKENS[5:]]),
        "stock": stock_experiment(folder / "stock"),
        "stock draft": stock_experiment(
            folder / "stock draft", "transformer", decoder_conf={"num_blocks": 1}
        ),
        "8 kHz": stock_experiment(folder / "slow", frontend_conf={"fs": "8k", "n_fft": 256}),
        "rnn": stock_experiment(
            folder / "rnn", decoder="rnn", decoder_conf={"hidden_size": 8, "num_layers": 1}
        ),
    }  # fmt: skip


def load(models, main="main", draft=None, **options):
    if draft is not None:
        options["draft_model"] = str(models[draft].folder)
    return Speech2Text(**files(models[main]), **options)


@pytest.fixture(scope="module")
def plain(models):
    """Return a function from main model and search to results without drafts, which it caches."""

    @cache
    def decode(main: str, search: str) -> list:
        speech2text = load(models, main, draft_depth=0, **SEARCHES[search])
        return [nbest(speech2text(speech)) for speech in speeches(step=STEPS.get(main, 3700))]

    return decode


def drafters_with_searches() -> list:
    """Return each drafter with greedy search and a beam search in turn; heads with all searches."""
    rows = []
    for place, drafter in enumerate(DRAFTERS):
        of_units = drafter[0].startswith("units")
        beams = ["beam"] if of_units else ["beam", "beam with CTC"]
        chosen = beams if place == 0 else [beams[place % 2]] if place % 2 < len(beams) else []
        rows += [(*drafter, search) for search in ("greedy", *chosen)]
        others = [(*drafter, search) for search in beams if search not in chosen]
        rows += [pytest.param(*row, marks=pytest.mark.full_length) for row in others]
    return rows


@cases(*drafters_with_searches(), ids=str)
def test_every_drafter_keeps_the_text(main, options, kind, search, models, plain):
    speech2text = load(models, main, **options, **SEARCHES[search])
    assert isinstance(speech2text.search.planner.proposer, kind)
    speech2text.release_weights()  # the search has copies
    given, expected = speeches(step=STEPS.get(main, 3700)), plain(main, search)
    alone = [Decoding(speech2text(speech), speech2text.statistics) for speech in given]
    for found in (alone, speech2text.decode(given)):
        assert_decodings(found, expected)
        for decoding in found:
            summary = decoding.statistics.summary()
            assert sum(summary["drafted"]) > 0
            assert (summary["draft_calls"] > 0) == ("draft" in options)
            assert (summary["draft_nodes"] > 0) == ("draft" in options)


@cases(
    ({"search": "greedy"}, 3, None, AutoDepth),
    ({"search": "greedy", "drafter": "ctc"}, 40, None, AutoDepth),
    ({"search": "greedy", "drafter": "ctc+heads"}, 40, None, AutoDepth),
    (MODEL | {"search": "greedy"}, 5, None, AutoDepth),
    (MODEL | {"search": "greedy", "drafter": "ctc+model"}, 5, None, AutoDepth),
    ({"drafter": "ctc"}, 15, 60, AutoDepth),
    ({"drafter": "ctc", "draft_budget": 100, "draft_depth": 4}, 4, 100, None),
    ({}, 3, None, AutoDepth),
    (MODEL, 5, None, AutoDepth),
    (MODEL | {"lookahead": "fixed"}, 5, None, None),
    (MODEL | {"lookahead": "auto", "draft_depth": 9}, 9, None, AutoDepth),
    (MODEL | {"lookahead": "acceptance", "draft_depth": 7}, 7, None, ByAcceptance),
    ({"search": "greedy", "lookahead": "acceptance"}, 3, None, ByAcceptance),
    ({"search": "greedy", "lookahead": "auto", "draft_depth": 0}, 0, None, None),
    ids=str,
)
def test_draft_depth_budget_and_lookahead(options, depth, budget, lookahead, models):
    shape = load(models, **options).search.planner.shape
    assert (shape.depth, shape.budget) == (depth, budget)
    assert (shape.lookahead and type(shape.lookahead)) == lookahead
    if lookahead is not None:
        assert shape.lookahead.most == depth
    if lookahead is AutoDepth:
        assert shape.lookahead.first == (depth if options else 0), "heads in a beam begin with 0"


def test_heads_are_the_default_drafter(models, caplog):
    heads = load(models, draft="draft", search="greedy")
    assert isinstance(heads.search.planner.proposer, HeadsProposer)
    assert heads.model.draft_model is None, "a model that does not draft is not read"
    assert "draft_model is not used, because drafter is heads" in caplog.text
    caplog.clear()
    assert load(models, draft="draft", draft_depth=0).search.planner.proposer is None
    assert "draft_model is not used, because drafter is heads" in caplog.text
    assert load(models, "stock", search="greedy").search.planner.proposer is None
    by_config = {"drafter": "model", "draft_model": str(models["draft"].config)}
    assert load(models, search="greedy", **by_config).model.draft_model.tokens == TOKENS
    plain = load(models, "stock", draft="draft", search="greedy", draft_depth=0)
    assert plain.model.draft_model is None and plain.search.planner.proposer is None


@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("options", [{"drafter": "ctc"}, MODEL, MODEL | {"draft": "other tokens"}])
def test_unverified_drafts_of_ctc_and_draft_models(models, search, options):
    settings = {"acceptance": "threshold", "threshold": 0.5, "ctc_weight": 0.0, "beam_size": 2}
    speech2text = load(models, search=search, maxlenratio=-12, **settings, **options)
    for decoding in speech2text.decode(speeches()):
        assert decoding.results and sum(decoding.statistics.drafted) > 0


@refuses(
    ("main", {"drafter": "ctx"}, "drafter: 'ctx' is not known.*did you mean 'ctc'"),
    ("main", {"lookahead": "far"}, "lookahead: 'far' is not known.*auto, fixed, acceptance"),
    ("main", {"ctc_draft_share": 1.2}, "ctc_draft_share: 1.2; allowed: 0 to 1"),
    ("no ctc", {"drafter": "ctc"}, r"drafter: ctc; this model has no CTC branch.*heads, model"),
    ("no ctc", {"drafter": "ctc+heads"}, r"drafter: ctc\+heads; this model has no CTC"),
    ("stock", {"drafter": "heads"}, "drafter: heads; this model has no heads.*: ctc, model"),
    ("stock", {"drafter": "ctc+heads"}, r"drafter: ctc\+heads; this model has no heads"),
    ("stock", {"draft_depth": 3}, "draft_depth: 3; allowed: at most 0, .* see drafter"),
    ("no ctc", {"drafter": "ctc+model", "draft": "draft"}, "ctc.model; this model has no CTC"),
    ("main", {"drafter": "ctc+model"}, r"drafter: ctc\+model needs draft_model"),
    ("main", {"drafter": "model"}, "drafter: model needs draft_model: an experiment folder"),
    ("main", MODEL | {"draft_vocab_size": 5}, "size: 5; a draft model has its own tokens"),
    ("main", {"drafter": "model", "draft": "8 kHz"}, "expects 8000 Hz; allowed: .*16000 Hz"),
    ("main", {"drafter": "model", "draft": "rnn"}, "decoder: RNNDecoder; allowed: decod"),
    ("main", MODEL | {"draft_model_file": "nowhere.pth"}, "nowhere.pth: no such checkpoint"),
    ("main", {"drafter": "model", "draft_model": "nowhere.yaml"}, "nowhere.yaml: no such file"),
    ("main", NOWHERE, "'./nowhere' has no config.json.*experiment of ESPnet is allowed, too"),
    ("main", NOWHERE | {"draft_model_file": "a.pth"}, "a.pth; allowed with an experiment"),
    ("main", MEASURED | {"acceptance": "threshold"}, "lookahead: auto; .* threshold: fixed"),
    ("stock", {"drafter": "ctc", "ctc_weight": 1.0}, "drafter: ctc; ESPnet's own search"),
    ("stock", {"drafter": "ctc", "streaming": True}, "drafter: ctc; ESPnet's own search"),
    ("stock", {"draft": "draft", "time_sync": True}, "draft_model: .*ESPnet's own search"),
    ("stock", MEASURED | {"ctc_weight": 1.0}, "lookahead: auto; ESPnet's own search"),
    ("no ctc", {"ctc_weight": 1.0}, "ctc_weight: 1.0; allowed: 0.0; this model has no CTC"),
    ("units", {}, "ctc_weight: 0.5; allowed: 0.0 .*ctc_units"),
    ("units", {"ctc_weight": 0.3}, "ctc_weight: 0.3; allowed: 0.0 .*ctc_units"),
    ("units", {"ctc_weight": 1.0}, "ctc_weight: 1.0; allowed: 0.0 .*ctc_units"),
    ("units", {"ctc_weight": 0.3, "time_sync": True}, "ctc_weight: 0.3; allowed: 0.0 .*ctc_units"),
)
def test_unsupported_drafters_are_refused(main, options, models):
    load(models, main, **options)


def test_experiments_without_good_weights_or_config_are_refused(models, tmp_path):
    config, empty = tmp_path / "config.yaml", tmp_path / "12epoch.pth"
    config.write_text(models["draft"].config.read_text())
    empty.write_bytes(b"")

    def refuse(weights, message):
        given = str(tmp_path), weights and str(weights), "cpu", torch.float32
        assert_refused(message, open_draft_model, *given)

    refuse(None, "give draft_model_file; .pth files there: 12epoch.pth")
    refuse(empty, "12epoch.pth: not a checkpoint with weights only")
    refuse(models["main"].model, "does not fit the model")
    config.write_text("[1, 2")
    refuse(models["draft"].model, "config.yaml: cannot be read")


@cases(("main", "draft", [80]), ("main", "128 bins", [80, 128]), ("stock", "draft", [80]))
def test_features_are_computed_once_for_each_kind(main, draft, computed, models, monkeypatch):
    speech2text = load(models, main, draft, drafter="model", search="greedy")
    bins = record_calls(monkeypatch, LogMel, "forward", lambda log_mel, *_: len(log_mel.filters))
    speech2text.decode(speeches())
    assert bins == computed
    speech2text.decode(speeches(1))
    assert bins == 2 * computed, "of other audio anew"


@pytest.mark.parametrize("changed", [False, True])
def test_a_shared_encoder_runs_once(models, tmp_path, changed, monkeypatch):
    copy = tmp_path / "copy.pth"
    weights = torch.load(models["main"].model, weights_only=True)
    if changed:
        weights["encoder.whisper.conv1.bias"][0] += 1
    torch.save(weights, copy)
    draft = {"draft_model": str(models["main"].config), "draft_model_file": str(copy)}
    batches = record_calls(monkeypatch, HFWhisperEncoder, "encode", lambda *_: None)
    options = draft | {"drafter": "model", "search": "greedy", "draft_depth": 2}
    Speech2Text(**files(models["main"]), **options).decode(speeches())
    assert len(batches) == 1 + changed


def test_a_draft_model_reads_its_own_encoder_output(models):
    speech2text = load(models, draft="128 bins", drafter="model", search="greedy")
    alone = Speech2Text(**files(models["128 bins"]), search="greedy")
    audio = speech2text.model.batch(speeches())
    prompt = speech2text.model.make_prompts(*speech2text.model.encode(audio), [None] * 3)
    inputs = speech2text.model.draft_inputs(audio, prompt.tolist())
    encoder_out, frames = alone.model.encode(alone.model.batch(speeches()))
    for one, expected, count in zip(inputs, encoder_out, frames.tolist(), strict=True):
        torch.testing.assert_close(one.encoder_out, expected[:count])
        assert one.prompt == [TOKENS.index("<sos/eos>")]


def test_drafters_get_encoder_output_without_padding(models):
    speech2text = load(models, "units", search="greedy", drafter="ctc")
    audio = speech2text.model.batch(speeches(step=9000))
    encoder_out, frames = speech2text.model.encode(audio)
    assert frames.tolist() == [100] * 3
    inputs = speech2text.model.draft_inputs(audio, [[0]] * 3)
    # 16,000 samples a second, 320 a frame, half a second more.
    assert [len(one.encoder_out) for one in inputs] == [38, 66, 94]
    for one, row in zip(inputs, encoder_out, strict=True):
        assert torch.equal(one.encoder_out, row[: len(one.encoder_out)])


@pytest.mark.parametrize("positions", [50, 200])
def test_the_shorter_window_limits_the_audio(models, tmp_path, positions):
    draft = make_experiment(
        tmp_path / "exp", 1, encoder_conf=ENCODER | {"max_source_positions": positions},
        decoder_conf=DECODER,
    )  # fmt: skip
    options = {"search": "greedy", "drafter": "model", "draft_model": str(draft.folder)}
    assert Speech2Text(**files(models["main"]), **options).window_s == min(positions, 100) / 50


@cache
def whisper_tokens(vocab_size: int) -> WhisperTokens:
    return read_whisper_tokens(make_tokenizer(vocab_size))


def open_tiny_whisper(folder, vocab_size: int):
    return open_draft_model(str(save_tiny_whisper(folder, vocab_size)), None, "cpu", torch.float32)


def whisper_prompts(draft, vocab_size: int, *prompts) -> list[list[int]]:
    """Prompts of the draft model for those of a main model with this vocabulary."""
    tokens = whisper_tokens(vocab_size)
    rows = [tokens.prompt(*prompt) for prompt in prompts]
    audio = AudioBatch([torch.from_numpy(s) for s in speeches(len(rows))], "cpu", torch.float32)
    return [one.prompt for one in draft.read(audio, rows, tokens)]


def test_a_whisper_drafts_with_the_prompts_of_its_own_vocabulary(tmp_path):
    draft = open_tiny_whisper(tmp_path / "v2", 51865)
    own = whisper_tokens(51865)
    said = [("de", "transcribe"), ("fr", "translate"), ("yue", "transcribe")]
    expected = [own.prompt(*one) for one in [*said[:2], ("en", "transcribe")]]
    assert whisper_prompts(draft, 51866, *said) == expected
    assert whisper_prompts(draft, 51864, (None,)) == [own.prompt("en")]
    assert draft.tokens == [*make_tokenizer(51865).convert_ids_to_tokens(range(51865))]
    english = open_tiny_whisper(tmp_path / "en", 51864)
    own = whisper_tokens(51864)
    assert whisper_prompts(english, 51865, ("de", "translate")) == [own.prompt("en")]


@pytest.mark.parametrize(
    ("vocab_size", "num_mel_bins", "of_draft"),
    [(51865, 80, 51865), (51866, 128, 51865), (51865, 80, 51864)],
    ids=["v2", "v3 with v2", "v2 with .en"],
)
def test_a_whisper_drafts_for_a_whisper(tmp_path, vocab_size, num_mel_bins, of_draft):
    """With the language that the main model detects."""
    sizes = {"hidden_size": 16, "seed": 3}
    folder = save_tiny_whisper(tmp_path / "whisper", vocab_size, num_mel_bins=num_mel_bins, **sizes)
    small = save_tiny_whisper(tmp_path / "small", of_draft, decoder_layers=1, **sizes)
    trained = open_whisper_model(str(folder), "cpu")
    trained.asr_model.encoder.window = "audio"
    options = {"search": "greedy", "maxlenratio": -10, "language": "detect", "trained": trained}
    plain = [nbest(one.results) for one in Speech2Text(**options, draft_depth=0).decode(speeches())]
    speech2text = Speech2Text(**options, draft_model=str(small))
    found = speech2text.decode(speeches())
    assert_decodings(found, plain)
    assert all(one.statistics.draft_calls for one in found)
    audio = speech2text.model.batch(speeches())
    prompt = speech2text.model.make_prompts(*speech2text.model.encode(audio), [None] * 3)
    inputs = speech2text.model.draft_inputs(audio, prompt.tolist())
    if of_draft == vocab_size:
        assert [one.prompt for one in inputs] == prompt.tolist()
    assert {len(one.encoder_out) for one in inputs} == {1500}, "as that Whisper was trained"


def test_hidden_tokens_add_to_the_blank():
    encoder_out = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0))
    ctc = SimpleNamespace(log_softmax=lambda hidden: hidden.log_softmax(dim=-1))
    found = hide_tokens(ctc.log_softmax, [1, 3], 0)(encoder_out)
    before = ctc.log_softmax(encoder_out).exp()
    expected = torch.zeros(1, 5, 4)
    expected[..., 0] = before[..., [0, 1, 3]].sum(dim=-1)
    expected[..., 2] = before[..., 2]
    torch.testing.assert_close(found.exp(), expected)
