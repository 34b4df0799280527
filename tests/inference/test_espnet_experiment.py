"""Experiments of stock ESPnet: our n-best lists equal ESPnet's."""

from argparse import Namespace

import kaldiio
import numpy as np
import pytest
from cases import cases
from espnet2.bin.asr_inference import Speech2Text as ESPnetSpeech2Text
from espnet2.tasks.lm import LMTask
from experiment import TOKENS, dry_run, noise, read_lines, save_random, speeches
from refusals import assert_refused, refuses
from stock_experiment import assert_nbest, files, make_untrained, nbest, stock_experiment

from espnet_medusa.bin import asr_inference
from espnet_medusa.espnet.task import MedusaASRTask
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.espnet_compat import HAS_CTC_WINDOW, SAME_CTC_WINDOW


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stock")
    lm_sizes = {"pos_enc": "sinusoidal", "embed_unit": 8, "att_unit": 8, "head": 2, "unit": 8}
    lm = {"lm": "transformer", "lm_conf": lm_sizes | {"layer": 1}, "token_type": "char"}
    intermediate = {"interctc_layer_idx": [1], "interctc_use_conditioning": True}
    sizes = {"output_size": 32, "attention_heads": 2, "linear_units": 48, "num_blocks": 2}
    return {
        "conformer": stock_experiment(folder / "conformer"),
        "transformer": stock_experiment(
            folder / "transformer",
            encoder="transformer",
            encoder_conf=sizes | {"input_layer": "conv2d2"} | intermediate,
            model_conf={"ctc_weight": 0.3, "interctc_weight": 0.5},
            decoder_conf={"num_blocks": 1, "normalize_before": False, "concat_after": True},
        ),
        "lm": make_untrained(LMTask, folder / "lm", lm),
    }


@cases(
    ({"beam_size": 3, "ctc_weight": 0.3, "nbest": 3},),
    ({"beam_size": 5, "ctc_weight": 0.0, "penalty": 0.4, "maxlenratio": 0.5, "nbest": 2},),
    ({"beam_size": 2, "ctc_weight": 0.5, "lm_weight": 0.3, "normalize_length": True, "nbest": 2},),
    ({"beam_size": 1, "ctc_weight": 0.0},),  # greedy search
    ids=str,
)
@pytest.mark.parametrize("name", ["conformer", "transformer"])
def test_an_experiment_decodes_as_in_espnet(options, folders, name):
    options = files(folders[name]) | options
    if "lm_weight" in options:
        options["lm_train_config"] = str(folders["lm"].config)
        options["lm_file"] = str(folders["lm"].model)
    own = options | ({"search": "greedy"} if options["beam_size"] == 1 else {})
    stock, ours = ESPnetSpeech2Text(**options), Speech2Text(**own)
    assert ours.search is not None
    given = speeches(step=1700)
    for speech, decoding in zip(given, ours.decode(given), strict=True):
        expected = nbest(stock(speech))
        for results in (ours(speech), decoding.results):  # alone and in a batch
            assert_nbest(results, expected)
        assert expected[0][0][2], "some text"
        assert ours.statistics.decoder_calls > 1


@cases(({},), ({"ctc_window_margin": 0},), ({"ctc_window_margin": 3},), ids=str)
def test_ctc_scores_over_espnets_window(options, folders):
    """By default over the installed ESPnet's; 202511 has none, but ours has the option."""
    base = files(folders["conformer"]) | {"beam_size": 4, "ctc_weight": 0.5, "nbest": 3}
    given, margin = base | {"maxlenratio": -12} | options, options.get("ctc_window_margin")
    ours = Speech2Text(**given).search.strategy.window_margin
    assert ours == ((100 if HAS_CTC_WINDOW else 0) if margin is None else margin)
    unset = Speech2Text(**given | {"ctc_window_margin": None}).search.strategy.window_margin
    assert unset == (100 if HAS_CTC_WINDOW else 0)
    if SAME_CTC_WINDOW or not margin:
        stock_options = given if HAS_CTC_WINDOW else base | {"maxlenratio": -12}
        stock, speech = ESPnetSpeech2Text(**stock_options), noise(5, 48000)
        for drafts in ({}, {"drafter": "ctc"}):
            assert_nbest(Speech2Text(**given, **drafts)(speech), nbest(stock(speech)))


def test_features_are_decoded_as_in_espnet(tmp_path):
    """A model without frontend, as asr.sh trains it with --feats_type fbank_pitch or extracted."""
    trained = stock_experiment(tmp_path / "exp", frontend=None, frontend_conf={}, input_size=24)
    rng, stock = np.random.default_rng(3), ESPnetSpeech2Text(**files(trained), beam_size=3)
    features = {f"u{row}": rng.standard_normal((40 + 9 * row, 24), np.float32) for row in range(4)}
    bad = {"nan": np.full((30, 24), np.nan, np.float32), "thin": np.zeros((30, 23), np.float32)}
    scp = tmp_path / "feats.scp"
    kaldiio.save_ark(str(tmp_path / "feats.ark"), features | bad, scp=str(scp))
    # kaldiio would run each command, also before an offset or a range, and read standard input.
    touch = f"touch {tmp_path / 'ran'} |"
    commands = {"pipe": touch, "offset": f"{touch}:0", "range": f"{touch}[0:1]", "stdin": "-"}
    unread = {"gone": tmp_path / "gone.ark:5"} | commands
    scp.write_text(scp.read_text() + "".join(f"{key} {value}\n" for key, value in unread.items()))
    output, batch = tmp_path / "out", ["--batch_size", "3", "--beam_size", "3"]
    command = [*trained.options(), *batch, "--output_dir", str(output)]
    with pytest.raises(SystemExit, match="^3$"):
        asr_inference.main([*command, "--data_path_and_name_and_type", f"{scp},speech,kaldi_ark"])
    tokens = read_lines(output / "1best_recog" / "token_int")
    assert tokens == {key: " ".join(map(str, stock(rows)[0][2])) for key, rows in features.items()}
    assert any(tokens.values())
    failed = read_lines(output / "failed_utterances")
    assert failed.keys() == {*bad, *unread} and not (tmp_path / "ran").exists()
    assert "(30, 23)" in failed["thin"] and "(frames, 24)" in failed["thin"]
    assert "NaN" in failed["nan"] and all("is a command" in failed[key] for key in commands)


@cases(
    ("conformer", {"time_sync": True, "ctc_weight": 0.3}, "BeamSearchTimeSync"),
    ("conformer", {"ctc_weight": 1.0}, "ctc_weight: 1"),
    ("conformer", {"quantize_asr_model": True}, "quantized"),
    ("conformer", {"streaming": True}, "BatchBeamSearchOnlineSim"),
    ("transformer", {"ctc_weight": 1.0}, "ctc_weight: 1"),
    ids=str,
)
def test_espnets_search_decodes_with_unsupported_options(name, options, reason, folders, caplog):
    options = files(folders[name]) | {"beam_size": 2} | options
    ours = Speech2Text(**options)
    assert ours.search is None
    for unscaled in (32768 * speeches()[0], np.ones(8000, np.int16)):
        assert_refused(r"speech: .*; allowed: .*samples in \[-1, 1\]", ours, unscaled)
    assert "ESPnet's own search decodes, one utterance at a time" in caplog.text
    assert reason in caplog.text
    if not {"streaming", "time_sync"} & options.keys():  # which ESPnet 202511 itself stumbles over
        [speech] = speeches(1, step=1700)
        [decoding], expected = ours.decode([speech]), ESPnetSpeech2Text(**options)(speech)
        for results in (ours(speech), decoding.results):
            assert nbest(results) == nbest(expected)
        layers = expected[1] if isinstance(expected, tuple) else None
        assert decoding.intermediate == layers and (layers is None) == (name == "conformer")


@refuses(
    ({"search": "greedy", "quantize_asr_model": True}, "search: greedy needs.*quantized"),
    ({"ctc_weight": 1.0, "batch_size": 2}, "batch_size: 2; ESPnet's own search"),
    ({"ctc_weight": 1.0, "forced_prefix": [3]}, r"forced_prefix: \[3\]; ESPnet's own search"),
    ({"ctc_weight": 1.0, "patience": 2.0}, "patience: 2.0; ESPnet's own search"),
    ({"multi_asr": True}, "multi_asr: true; not supported; decode with espnet2.bin.asr_inference"),
    ({"enh_s2t_task": True}, "enh_s2t_task: true; not supported"),
    ({"draft_depth": 2}, "draft_depth: 2; allowed: at most 0"),
    ({"ctc_window_margin": "wide"}, "ctc_window_margin.* 'wide'.*allowed: a whole number"),
    ({"ctc_weight": 1.5}, "ctc_weight: 1.5; allowed: 0 to 1"),
    ({"penalty": float("nan")}, "penalty: nan; allowed: a finite number"),
    ({"beam_size": "5"}, "beam_size: '5'; allowed: a whole number"),
    ({"draft_vocab_size": 5}, "draft_vocab_size: 5; this model has no counts"),
)
def test_bad_options_are_refused(options, folders):
    Speech2Text(**files(folders["conformer"]), **options)


@cases(
    (TOKENS[:-1], "has 13 tokens, the model 14, and token 13 is None instead of '<sos/eos>'"),
    ([*TOKENS[:3], "b", "a", *TOKENS[5:]], "token 3 is 'b' instead of 'a'; train the"),
)
def test_a_language_model_with_other_tokens_is_refused(tokens, message, folders, tmp_path):
    config = dry_run(LMTask, tmp_path, {"token_type": "char"}, tokens=tokens)
    save_random(LMTask, tmp_path, config, 0.3)
    options = files(folders["conformer"]) | {"lm_file": str(tmp_path / "model.pth")}
    for more in ({}, {"lm_train_config": str(tmp_path / "config.yaml")}):
        assert_refused(message, Speech2Text, **options, **more)


def test_gpus_that_are_not_there_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    message = "--ngpu 1: torch finds no GPU here; allowed: 0, the CPU"
    assert_refused(message, MedusaASRTask.main_worker, Namespace(ngpu=1))
