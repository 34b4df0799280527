"""OWSM's searches and speech translation: the n-best lists of ESPnet's own commands."""

import random
import shutil

import numpy as np
import pytest
import s2t_experiment as s2t
import torch
from cases import cases
from espnet2.bin import s2t_inference as espnet
from espnet2.bin import st_inference as espnet_st
from espnet2.tasks.st import STTask
from experiment import TOKENS, dry_run, noise, read_lines, save_random, write_corpus, write_lines
from job_log import assert_same_nbest_files
from refusals import assert_refused, refused, refuses
from waiting import full_length

from espnet_medusa.bin import s2t_inference, st_inference
from espnet_medusa.inference.journal import read_journal
from espnet_medusa.inference.packed_model import pack_model
from espnet_medusa.inference.s2t import S2TSpeech2Text, TimestampFilter
from espnet_medusa.inference.st import STSpeech2Text
from espnet_medusa.networks.espnet_compat import SAME_CTC_WINDOW


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return s2t.make_s2t_experiment(tmp_path_factory.mktemp("s2t"), seed=3)


def assert_espnets(rng, base, ours, options, all_drafts):
    """Compare our n-best lists, alone and in a batch, with those of ESPnet's search."""
    theirs = espnet.Speech2Text(**base, **options)
    speeches, conditions = s2t.random_inputs(rng, 3)
    calls = [*zip(speeches, conditions, strict=True)]
    expected = [s2t.nbest_of(theirs, *call) for call in calls]
    for drafts in all_drafts:
        model = S2TSpeech2Text(**ours, **options, **drafts)
        alone = [model(speech, **condition) for speech, condition in calls]
        together = [decoding.results for decoding in model.decode(speeches, conditions)]
        for results in (alone, together):
            for result, right in zip(results, expected, strict=True):
                assert right is None or s2t.difference(result, right) is None
        assert (model.search.planner.proposer is not None) == bool(drafts)


# Seeds of random options: with beams of 1 to 9, CTC, timestamps, penalty and limits of the length.
@pytest.mark.parametrize("seed", [3, 4, 17, *full_length(2, 5)])
def test_nbest_lists_are_espnets(tmp_path, seed):
    rng, files = random.Random(seed), s2t.make_s2t_experiment(tmp_path, seed)
    drafts = {}, {"drafter": "ctc"}, {"drafter": "ctc", "draft_depth": 7}
    assert_espnets(rng, files, files, s2t.random_options(rng), drafts)


HEADS = [("linear", 2), ("block", 1), ("recurrent", 1), ("attending", 5)]
LONGER = [("linear", 0), ("linear", 1), ("block", 0), ("recurrent", 0), ("attending", 0)]


@pytest.mark.parametrize("case", [*HEADS, *full_length(*LONGER)], ids=str)
def test_heads_do_not_change_the_nbest_lists(tmp_path, case):
    """The oracle is ESPnet's search with ESPnet's decoder and the same weights."""
    heads, seed = case
    rng, base = random.Random(f"{heads} {seed}"), s2t.make_s2t_experiment(tmp_path / "base", seed)
    ours = s2t.add_heads(tmp_path / heads, base, heads)
    drafts = {"draft_depth": 3}, {"drafter": "ctc+heads", "draft_depth": 3}
    assert_espnets(rng, base, ours, s2t.random_options(rng), drafts)


DRAFTERS = [("model", 4), ("ctc+model", 17)]
LONGER_DRAFTS = [("model", 0), ("model", 1), ("ctc+model", 0), ("ctc+model", 1)]


@pytest.mark.parametrize("case", [*DRAFTERS, *full_length(*LONGER_DRAFTS)], ids=str)
def test_draft_models_do_not_change_the_nbest_lists(tmp_path, case):
    drafter, seed = case
    rng, files = random.Random(seed), s2t.make_s2t_experiment(tmp_path / "main", seed)
    s2t.make_s2t_experiment(tmp_path / "draft", seed, decoder_conf=s2t.SIZES | {"num_blocks": 1})
    drafts = {"drafter": drafter, "draft_model": tmp_path / "draft"}
    assert_espnets(rng, files, files, s2t.random_options(rng), [drafts])


@pytest.mark.parametrize("seed", [1, 6])
def test_ctc_scores_over_a_window(tmp_path, seed):
    """ESPnet's s2t_inference has no such option, but its scorer has since 202611."""
    files, rng = s2t.make_s2t_experiment(tmp_path, seed), random.Random(seed)
    options = {"beam_size": 4, "ctc_weight": 0.5, "maxlenratio": -12, "nbest": 3}
    assert S2TSpeech2Text(**files, **options).search.strategy.window_margin == 0
    drafting = [{}, {"drafter": "ctc"}]
    ours = [S2TSpeech2Text(**files, **options, **d, ctc_window_margin=2) for d in drafting]
    assert [model.search.strategy.window_margin for model in ours] == [2, 2]
    theirs = espnet.Speech2Text(**files, **options)
    if not SAME_CTC_WINDOW:
        return
    theirs.beam_search.part_scorers["ctc"].window_margin = 2
    for speech, condition in zip(*s2t.random_inputs(rng, 3), strict=True):
        expected = s2t.nbest_of(theirs, speech, condition)
        for model in ours:
            assert s2t.difference(model(speech, **condition), expected) is None


@cases((0.0, 3, "model", 3), (0.3, 1, "ctc", 2), ids=["an equal model", "ctc"])
def test_drafts_save_calls(ctc_weight, beam_size, drafter, fewer, files):
    options, calls = {"ctc_weight": ctc_weight, "beam_size": beam_size, "maxlenratio": -30}, []
    draft = {"draft_model": files["s2t_train_config"]} if drafter == "model" else {"drafter": "ctc"}
    for drafts in ({}, draft):
        model = S2TSpeech2Text(**files, **options, **drafts)
        model(noise(1))
        calls.append(model.statistics.decoder_calls)
    assert calls[0] > fewer * calls[1]


def test_a_draft_models_config_may_have_any_name(files, tmp_path):
    config = shutil.copy(files["s2t_train_config"], tmp_path / "small.yaml")
    draft = {"draft_model": config, "draft_model_file": files["s2t_model_file"]}
    model = S2TSpeech2Text(**files, beam_size=1, maxlenratio=-30, **draft)
    model(noise(1))
    assert 3 * model.statistics.decoder_calls < 30


def test_draft_conf_of_the_heads_is_the_default(files, tmp_path):
    config = s2t.medusa_config("linear")
    config["decoder_conf"]["draft_conf"] = {"beam": {"draft_depth": 2}}
    heads = s2t.make_s2t_experiment(tmp_path, 0, **config)
    for given, depth in (({}, 2), ({"draft_depth": 1}, 1)):
        assert S2TSpeech2Text(**heads, **given).options.draft_depth == depth


@refuses(("lstm", "draft_model: .*decoder: RNNDecoder"), ("", "draft_model: .*has no config.yaml"))
def test_draft_models_that_do_not_fit(folder, files, tmp_path):
    s2t.make_s2t_experiment(tmp_path / "lstm", 1, decoder="rnn", decoder_conf={})
    S2TSpeech2Text(**files, draft_model=tmp_path / folder)


def test_each_utterance_has_the_log_lines_of_calculate_rtf(files, caplog):
    caplog.set_level("INFO")
    model = S2TSpeech2Text(**files, beam_size=2, maxlenratio=-5)
    caplog.clear()
    results = model.decode([noise(0), noise(1)])
    lines = [line.partition(": ") for line in caplog.messages]
    assert sum(name == "speech length" for name, _, _ in lines) == 2
    best = [text.strip() for name, _, text in lines if name == "best hypo"]
    assert best == ["".join(decoding.results[0][1][3:]) for decoding in results]


def test_timestamps_take_one_call_per_token(files):
    # A filter's scores are at most 0: the search can rule out that it raises a hypothesis.
    options = {"predict_time": True, "beam_size": 5, "maxlenratio": -20, "nbest": 1}
    model = S2TSpeech2Text(**files, **options, ctc_weight=0.0)
    model(noise(1))
    assert model.statistics.decoder_calls <= 20


@pytest.mark.parametrize("seed", range(5))
def test_timestamp_filter_equals_espnets(seed):
    generator = torch.Generator().manual_seed(seed)
    names = ("<notimestamps>", s2t.TIMES[0], s2t.TIMES[-1], "<sos>", "<eos>")
    symbols = [s2t.TOKENS.index(name) for name in names]
    rules, sos = espnet.ScoreFilter(*symbols, len(s2t.TOKENS)), symbols[3]
    for length in (0, 1, 2, 3, 8):
        random_tokens = torch.randint(4, len(s2t.TOKENS) - 3, (200, length), generator=generator)
        prompt = torch.tensor([sos, 4, 6] + [8] * (seed == 4)).expand(200, -1)
        prefixes = torch.cat([prompt, random_tokens], dim=1)
        expected, _ = rules.batch_score(prefixes, [None] * 200, torch.zeros(200, 1, 1))
        scores, _ = TimestampFilter(rules).batch_score(prefixes, [None] * 200, None)
        assert torch.equal(scores, expected)


def test_long_audio_and_intermediate_ctc_are_espnets(tmp_path):
    layers = {"interctc_layer_idx": [1], "interctc_use_conditioning": True, "num_blocks": 2}
    conf = {"attention_heads": 2, "linear_units": 48, "output_size": 32, "input_layer": "conv2d"}
    model_conf = {"ctc_weight": 0.3, "sym_sop": "<sop>", "sym_na": "<na>", "interctc_weight": 0.2}
    changes = {"encoder_conf": conf | layers, "model_conf": model_conf}
    files = s2t.make_s2t_experiment(tmp_path, 1, **changes)
    options = {"ctc_weight": 0.0, "beam_size": 3, "maxlenratio": -12}
    ours, theirs = S2TSpeech2Text(**files, **options), espnet.Speech2Text(**files, **options)
    (result, layer), (expected, right) = ours(noise(0)), theirs(noise(0))
    assert s2t.difference(result, expected) is None and layer == right and layer
    speech = noise(1, 90000)
    arguments = {"condition_on_prev_text": True, "init_text": "abc", "end_time_threshold": "<1.80>"}
    assert ours.decode_long(speech, **arguments) == theirs.decode_long(speech, **arguments)


@pytest.mark.parametrize("with_text", [False, True])
def test_batch_decode_of_espnet_202611(files, with_text):
    options = {"beam_size": 3, "ctc_weight": 0.3, "maxlenratio": -8}
    model = S2TSpeech2Text(**files, **options)
    speech, arguments = torch.tensor(np.stack([noise(seed) for seed in range(3)])), {}
    texts = [None] * 3
    if with_text:
        texts = [np.array([112, 113]), np.array([114, 115]), np.array([116, 112])]
        arguments = {"text_prev": torch.tensor(np.stack(texts)), "text_prev_lengths": [2, 2, 2]}
    results = model.batch_decode(speech, **arguments, lang_sym="<deu>")
    calls = zip(speech, texts, strict=True)
    expected = [[model(row, text_prev=text, lang_sym="<deu>") for row, text in calls]]
    if hasattr(espnet.Speech2Text, "batch_decode"):
        theirs = espnet.Speech2Text(**files, **options)
        expected.append(theirs.batch_decode(speech, **arguments, lang_sym="<deu>"))
    for nbests in expected:
        pairs = zip(results, nbests, strict=True)
        assert [s2t.difference(result, right) for result, right in pairs] == [None] * 3


def command(files, folder, *options):
    words = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    lists = [f"{folder}/wav.scp,speech,sound"]
    lists += [f"{folder}/text_prev,text_prev,text"] * ("s2t_model_file" in files)
    data = [part for entry in lists for part in ("--data_path_and_name_and_type", entry)]
    return [*words, *data, "--maxlenratio", "-12", "--beam_size", "4", "--nbest", "2", *options]


def test_the_command_writes_espnets_files(files, tmp_path, monkeypatch):
    write_corpus(tmp_path, {"a": 0.7, "b": 2.6, "c": 1.3})
    write_lines(tmp_path / "text_prev", {"a": "hello", "b": "<na>", "c": "n b"})
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    run = command(files, tmp_path, "--ctc_weight", "0.2", "--lang_sym", "deu")
    espnet.main([*run, "--output_dir", str(theirs), "--num_workers", "0"])
    run += ["--output_dir", str(ours), "--batch_size", "3", "--drafter", "ctc", "--trace", "true"]
    s2t_inference.main(run)
    assert_same_nbest_files(ours, theirs, ("text", "text_nospecial", "token", "token_int"))
    assert (ours / "failed_utterances").read_text() == ""
    _, decoded = read_journal(ours / "journal.jsonl")
    assert [result.language for result in decoded.values() if result.trace] == ["deu"] * 3


def test_languages_bad_utterances_and_resumption(files, tmp_path, capsys):
    write_corpus(tmp_path, {"a": 0.7, "b": 0.6, "c": 1.3, "d": 0.9})
    (tmp_path / "b.wav").write_text("no audio")
    write_lines(tmp_path / "text_prev", {"a": "hello", "b": "a", "d": "e"})
    write_lines(tmp_path / "utt2lang", {"a": "deu", "b": "deu", "c": "deu", "d": "xyz"})
    out = tmp_path / "out"
    run = command(files, tmp_path, "--output_dir", str(out), "--batch_size", "2")
    run += ["--utt2lang", str(tmp_path / "utt2lang"), "--ctc_weight", "0"]
    assert_refused("^3$", s2t_inference.main, run, error=SystemExit)
    failed = read_lines(out / "failed_utterances")
    assert [*failed] == ["b", "c", "d"]
    assert "text_prev: has no such id" in failed["c"] and "lang_sym: <xyz>" in failed["d"]
    assert read_lines(out / "1best_recog" / "token")["a"].startswith("<deu> <asr>")
    write_lines(tmp_path / "utt2lang", {"a": "eng", "b": "deu", "c": "deu", "d": "eng"})
    assert_refused("^3$", s2t_inference.main, run, error=SystemExit)
    tokens = read_lines(out / "1best_recog" / "token")
    assert [tokens[key].split()[0] for key in ("a", "d")] == ["<eng>", "<eng>"], "decoded again"


def test_a_packed_model(files, tmp_path, in_folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(files["s2t_model_file"].parent, "exp")
    copies = {name: tmp_path / "exp" / path.name for name, path in files.items()}
    pack_model(copies, [], tmp_path / "model.zip")
    options = {"beam_size": 2, "maxlenratio": -8}
    packed = S2TSpeech2Text.from_pretrained(str(tmp_path / "model.zip"), **options)
    assert s2t.difference(packed(noise(0)), S2TSpeech2Text(**files, **options)(noise(0))) is None


@refuses(
    ({"search": "greedy"}, r"search: greedy; allowed with s2t: beam \(greedy: beam_size: 1\)"),
    ({"nbest": 0}, "nbest: 0"),
    ({"ctc_window_margin": -1}, "ctc_window_margin: -1 is too small; allowed: 0 or more"),
    ({"draft_depth": 2}, "draft_depth: 2; .*no heads"),
    ({"unknown": 1}, "unknown"),
)
def test_refusals(options, files):
    S2TSpeech2Text(**files, **options)


def test_weights_of_another_model_are_refused(files, tmp_path):
    sizes = s2t.NETWORKS["decoder_conf"] | {"linear_units": 32}
    other = s2t.make_s2t_experiment(tmp_path, 0, decoder_conf=sizes)
    weights = other["s2t_model_file"]
    with refused(f"{weights}: does not fit its config: size mismatch"):
        S2TSpeech2Text(**files | {"s2t_model_file": weights})


def test_statistics_have_words_and_no_utterances_have_no_results(files):
    model = S2TSpeech2Text(**files, beam_size=2, maxlenratio=-9)
    assert model.decode([]) == []
    [decoding] = model.decode([noise(0)])
    assert decoding.statistics.words == len(decoding.results[0][3].split()) > 0


def test_espnets_search_decodes_what_ours_does_not(tmp_path, caplog):
    conf = {"attention_heads": 2, "linear_units": 48, "num_blocks": 1, "conv_kernel_length": [3]}
    changes = {"decoder": "lightweight_conv", "decoder_conf": conf}
    files, options = s2t.make_s2t_experiment(tmp_path, 0, **changes), {"maxlenratio": -8}
    ours = S2TSpeech2Text(**files, **options)
    assert "ESPnet's own search decodes" in caplog.text and ours.search is None
    assert s2t.difference(ours(noise(0)), espnet.Speech2Text(**files, **options)(noise(0))) is None
    refused_options = {"batch_size": 2, "draft_model": "none", "patience": 2.0}
    for name, value in (refused_options | {"ctc_window_margin": 9}).items():
        with refused(f"{name}: {value}; ESPnet's own search", "allows only"):
            S2TSpeech2Text(**files, **{name: value})


def make_st_experiment(folder, seed, **changes):
    torch.manual_seed(seed)
    (folder / "src_tokens.txt").write_text("\n".join(TOKENS) + "\n")
    config = s2t.NETWORKS | {
        "model_conf": {"asr_weight": 0.3, "mtlalpha": 1.0, "st_mtlalpha": 0.3},
        "src_token_type": "char", "src_token_list": str(folder / "src_tokens.txt"),
    } | changes  # fmt: skip
    exp = folder / "exp"
    save_random(STTask, exp, dry_run(STTask, exp, config, "--seed", seed), 0.3)
    return {"st_train_config": exp / "config.yaml", "st_model_file": exp / "model.pth"}


def rows(nbest):
    return [(*row[:3], row[3].yseq.tolist()) for row in nbest]


@pytest.mark.parametrize("seed", [0, 2, 3, 5, *full_length(1, 4)])
def test_nbest_lists_of_translation_are_espnets(tmp_path, seed):
    rng = random.Random(seed)
    files = make_st_experiment(tmp_path, seed)
    options = {
        "beam_size": rng.randint(1, 8),
        "ctc_weight": [0.0, 0.3][seed % 2],
        "penalty": rng.choice([0.0, 0.3]),
        "maxlenratio": rng.choice([-6, -12]),
        "nbest": rng.choice([1, 4]),
    }
    theirs = espnet_st.Speech2Text(**files, **options)
    assert hasattr(theirs.st_model, "st_ctc")
    speeches = [noise(rng.randrange(1000), rng.randint(12000, 30000)) for _ in range(3)]
    expected = [theirs(speech) for speech in speeches]
    for drafts in ({}, {"drafter": "ctc"}):
        ours = STSpeech2Text(**files, **options, **drafts)
        for speech, right, decoding in zip(speeches, expected, ours.decode(speeches), strict=True):
            result = ours(speech)
            assert rows(result) == rows(decoding.results) == rows(right)
            scores = [[float(row[3].score) for row in nbest] for nbest in (result, right)]
            np.testing.assert_allclose(*scores, rtol=1e-4)
            assert decoding.statistics.decoder_calls > 0
            assert decoding.statistics.audio_seconds == len(speech) / 16000


def test_the_translation_command_writes_espnets_files(tmp_path):
    files = make_st_experiment(tmp_path, 1)
    write_corpus(tmp_path, {"a": 0.9, "b": 1.6, "c": 1.2})
    run = command(files, tmp_path, "--maxlenratio", "-9", "--nbest", "3", "--ctc_weight", "0.3")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    espnet_st.main([*run, "--output_dir", str(theirs), "--num_workers", "0"])
    st_inference.main([*run, "--output_dir", str(ours), "--drafter", "ctc", "--batch_size", "2"])
    assert_same_nbest_files(ours, theirs, ("text", "token", "token_int"))
    (tmp_path / "b.wav").write_text("no audio")
    with pytest.raises(SystemExit, match="^3$"):
        st_inference.main([*run, "--output_dir", str(ours)])


def test_translation_that_ours_does_not_decode(tmp_path, caplog):
    decoder = {"decoder": "rnn", "decoder_conf": {"num_layers": 1, "hidden_size": 8}}
    files = make_st_experiment(tmp_path, 0, **decoder)
    options = {"maxlenratio": -5, "beam_size": 3}
    ours = STSpeech2Text(**files, **options)
    assert ours.search is None and "ESPnet's own search decodes" in caplog.text
    expected = espnet_st.Speech2Text(**files, **options)(noise(0))
    assert rows(ours.decode([noise(0)])[0].results) == rows(expected)
    for name, value in {"batch_size": 2, "forced_prefix": [3]}.items():
        with refused(f"{name}: {value}; ESPnet's own search", "allows only"):
            STSpeech2Text(**files, **{name: value})


def test_translation_by_ctc_has_statistics_of_its_own(tmp_path):
    model = STSpeech2Text(**make_st_experiment(tmp_path, 1), ctc_greedy=True)
    assert model.decode([]) == []
    first, second = model.decode([noise(0), noise(1, 26000)])
    assert first.statistics.audio_seconds != second.statistics.audio_seconds
    assert [one.statistics.decoder_calls for one in (first, second)] == [0, 0]
    assert first.statistics.words == len(first.results[0][0].split())


@pytest.mark.parametrize("options", [{}, {"ctc_greedy": True}])
def test_integers_and_unscaled_samples_are_refused(options, files, tmp_path):
    translation = STSpeech2Text(**make_st_experiment(tmp_path, 1), **options)
    for model in (S2TSpeech2Text(**files), translation):
        for speech, message in (
            (noise(0) * 32768, r"amplitude of \d+.*; allowed: samples in \[-1, 1\]"),
            ((noise(0) * 32768).astype(np.int16), "speech: torch.int16; allowed: floats"),
        ):
            assert_refused(message, model, speech)
            assert_refused(message, model.decode, [noise(0), speech])
