"""Each option of the installed ESPnet is obeyed, passed on, refused or known to have no effect."""

import inspect
from importlib import import_module

import pytest
from cases import cases
from refusals import assert_refused
from tiny_whisper import save_whisper_of_bytes

from espnet_medusa.bin import asr_inference, s2t_inference, st_inference
from espnet_medusa.inference import espnet_options
from espnet_medusa.inference.decode_options import DecodeOptions, split_options
from espnet_medusa.inference.espnet_options import IGNORED, OBEYED, PASSED_ON, REFUSED
from espnet_medusa.inference.speech2text import ESPNET_OPTIONS, Speech2Text

OURS = {"asr": asr_inference, "s2t": s2t_inference, "st": st_inference}


@pytest.mark.parametrize("task", OURS)
def test_each_option_of_espnet_is_known(task):
    espnet = import_module(f"espnet2.bin.{task}_inference")
    parsed = {action.dest for action in espnet.get_parser()._actions}
    arguments = inspect.signature(espnet.Speech2Text.__init__).parameters.keys() - {"self"}
    unknown = (parsed | arguments) - (OBEYED | PASSED_ON | REFUSED | IGNORED)
    assert not unknown, "add them to espnet_options.py, and obey or refuse them"
    ours = {action.dest for action in OURS[task].get_parser()._actions}
    assert parsed <= ours, "a command line or config for ESPnet's command is valid"
    groups = [OBEYED, PASSED_ON, REFUSED, IGNORED]
    assert len(set().union(*groups)) == sum(map(len, groups)), "each in one set"


def test_an_option_of_a_newer_espnet_is_refused_unless_it_has_its_default():
    new = inspect.Parameter("prune", inspect.Parameter.KEYWORD_ONLY, default=3)
    names = {**ESPNET_OPTIONS, "prune": new}
    split_options({"prune": 3}, names, DecodeOptions)
    assert_refused(
        "prune: 4; an option of a newer ESPnet.*; allowed: 3",
        *(split_options, {"prune": 4}, names, DecodeOptions),
    )


@cases(
    ("asr", "word_lm_file"), ("s2t", "word_lm_train_config"), ("st", "src_word_lm_train_config")
)  # fmt: skip
def test_word_language_models_are_refused(task, name, tmp_path, capsys):
    files = [f"--{name}", "lm.pth", "--output_dir", str(tmp_path)]
    (tmp_path / "wav.scp").write_text("a a.wav\n")
    data = ["--data_path_and_name_and_type", f"{tmp_path}/wav.scp,speech,sound"]
    with pytest.raises(SystemExit, match=f"error: {name}: lm.pth; allowed: none"):
        OURS[task].main([*files, *data])


@cases(*((name,) for name in espnet_options.WHISPER_PROMPTS))
def test_prompts_of_espnets_whisper_are_refused_for_ours(name, tmp_path):
    save_whisper_of_bytes(tmp_path)
    options = {name: "<|en|>" if name != "lid_prompt" else True}
    message = f"{name}: .*; use language and task"
    assert_refused(message, Speech2Text.from_pretrained, str(tmp_path), **options)
