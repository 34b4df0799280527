"""A Whisper built without ESPnet's ASR task equals the task's model."""

import copy
from argparse import Namespace

import torch
from cases import cases
from espnet2.tasks.asr import ASRTask
from experiment import DECODER, NO_CTC, TOKENS, training_config

from espnet_medusa.inference.whisper_model import build_whisper_model, is_plain_whisper

CONFIG = {
    **training_config(model_conf=NO_CTC), "token_list": TOKENS, "init": None, "ctc_conf": {},
    "specaug": None, "frontend_conf": {}, "normalize_conf": {},
}  # fmt: skip


@cases(
    ({},),
    ({"decoder_conf": DECODER, "input_size": None, "frontend": "default"},),
    ({"model_conf": NO_CTC | {"freeze_whisper": "all"}, "normalize": "utterance_mvn"},),
    ({"model_conf": NO_CTC | {"sym_sos": "a", "sym_eos": "b", "sym_blank": "<blank>"}},),
    ids=str,
)
def test_the_model_is_that_of_the_task(changes):
    built = []
    for build in (ASRTask.build_model, build_whisper_model):
        args = Namespace(**copy.deepcopy(CONFIG | changes))
        assert is_plain_whisper(args)
        torch.manual_seed(3)
        built.append((build(args), args))
    (expected, known), (model, args) = built
    assert args == known
    for name in ("encoder", "decoder"):
        assert type(getattr(model, name)) is type(getattr(expected, name))
        assert str(getattr(model, name)) == str(getattr(expected, name))
    assert [*model.state_dict()] == [*expected.state_dict()]
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    for name in ("sos", "eos", "blank_id", "token_list", "ctc", "ctc_weight"):
        assert getattr(model, name) == getattr(expected, name)


@cases(
    ({"encoder": "conformer"},), ({"decoder": "speech_llama"},), ({"model": "espnet"},),
    ({"model_conf": {"ctc_weight": 0.3}},), ({"preencoder": "sinc"},),
    ({"token_list": "tokens.txt"},), ({"use_adapter": True},), ids=str,
)  # fmt: skip
def test_other_models_need_the_task(changes):
    assert not is_plain_whisper(Namespace(**CONFIG | changes))
