"""Whisper's networks under the options that asr.sh always gives."""

import shutil
from argparse import Namespace

import pytest
import torch
from espnet2.tasks.asr import ASRTask
from experiment import DECODER, ENCODER, TOKENS, dry_run
from refusals import assert_refused, refuses
from tiny_whisper import save_tiny_whisper

from espnet_medusa.networks.asr_arguments import take_waveforms

ASR_SH = ["--frontend_conf", "fs=16k", "--normalize=global_mvn", "--normalize_conf"]
ASR_SH += ["stats_file=nowhere/feats_stats.npz"]


def arguments(**changes) -> Namespace:
    """ESPnet's defaults, as its parser gives them."""
    given = {
        "encoder": "hf_whisper", "input_size": None, "frontend": "default", "frontend_conf": {},
        "normalize": "utterance_mvn", "normalize_conf": {}, "specaug": None,
    }  # fmt: skip
    return Namespace(**given | changes)


def test_ignored_options_are_logged_once(caplog):
    args = arguments(frontend_conf={"fs": "16k"}, normalize="global_mvn")
    with caplog.at_level("INFO"):
        take_waveforms(args)
        take_waveforms(args)
    line = "hf_whisper takes the waveform; ignored: frontend: default, normalize: global_mvn"
    assert caplog.messages == [line]
    assert (args.input_size, args.frontend, args.normalize) == (1, None, None)
    assert (args.frontend_conf, args.normalize_conf) == ({}, {})


def test_other_encoders_keep_their_frontend():
    args = arguments(encoder="transformer")
    take_waveforms(args)
    assert args == arguments(encoder="transformer")


@refuses(
    ({"input_size": 83}, "input_size: 83; hf_whisper takes audio.*--feats_type raw"),
    ({"frontend": "s3prl"}, "frontend: s3prl; .*frontend: null"),
    ({"frontend_conf": {"fs": "8k"}}, "fs=8k; hf_whisper takes 16 kHz.*--fs 16k"),
    ({"frontend_conf": {"fs": 44100}}, "fs=44100"),
    ({"specaug": "specaug"}, "specaug: specaug; .*use_specaug"),
)
def test_unsupported_frontends_are_refused(changes):
    take_waveforms(arguments(**changes))


@pytest.mark.parametrize("fs", [16000, "16000", "16k", "16K"])
def test_sample_rates_are_parsed_like_espnets(fs):
    take_waveforms(arguments(frontend_conf={"fs": fs}))


def train(folder, encoder_conf, decoder_conf, tokens=TOKENS, *options: str) -> dict:
    """Return the config that ESPnet's own training command writes."""
    config = {"encoder": "hf_whisper", "encoder_conf": encoder_conf, "decoder": "whisper_medusa",
              "decoder_conf": decoder_conf, "model": "medusa", "token_type": "char"}  # fmt: skip
    return dry_run(ASRTask, folder, config, *ASR_SH, *options, tokens=tokens)


def test_espnets_own_training_writes_a_self_contained_experiment(tmp_path):
    whisper = save_tiny_whisper(tmp_path / "whisper", len(TOKENS))
    conf = {"whisper_model": str(whisper)}
    heads = {"heads": "block", "heads_conf": {"num_heads": 2}}
    config = train(tmp_path / "run", conf, conf | heads)
    assert str(whisper) not in str(config)
    shutil.rmtree(whisper)
    model = ASRTask.build_model(Namespace(**config))
    assert model.ctc is None and model.ctc_weight == 0.0
    assert model.decoder.num_heads == 2 and model.frontend is None
    assert model.encode(torch.randn(1, 4000), torch.tensor([4000]))[0].size(-1) == 32


def test_start_and_end_are_whispers_if_the_token_list_has_them(tmp_path):
    def build(name, *arguments):
        config = train(tmp_path / name, dict(ENCODER), dict(DECODER), *arguments)
        return ASRTask.build_model(Namespace(**config))

    tokens = ["a", "<|endoftext|>", "<|startoftranscript|>", "b"]
    model = build("whisper", tokens)
    assert (model.sos, model.eos) == (2, 1)
    model = build("named", tokens, "--model_conf", "sym_sos=a", "--model_conf", "sym_eos=b")
    assert (model.sos, model.eos) == (0, 3)
    model = build("own", TOKENS, "--model_conf", "ctc_weight=0.3")
    assert model.sos == model.eos == TOKENS.index("<sos/eos>")
    assert model.ctc is not None and model.ctc_weight == 0.3


def test_another_vocabulary_is_refused_with_the_option(tmp_path):
    conf = {"whisper_model": str(save_tiny_whisper(tmp_path / "whisper", 51866))}
    message = "14 tokens.*51866.*hugging_face_model_name_or_path"
    assert_refused(message, train, tmp_path / "run", conf, dict(conf))
