"""ESPnet's import messages are silenced, and nothing else."""

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from espnet_medusa.upstream.quiet import NamesOnDemand, OnDemand, WithoutFlashAttention

NOISE = ("nltk", "Flash Attention", "autocast", "Warning")


def run(*arguments: str) -> subprocess.CompletedProcess:
    # typeguard does nothing under -O, which tests set for their processes.
    environment = {**os.environ, "PYTHONOPTIMIZE": ""}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("command", ["asr_inference", "asr_train"])
def test_commands_print_only_their_own_output(command):
    done = run("-m", f"espnet_medusa.bin.{command}", "--help")
    assert done.stdout.startswith("usage: ")
    for noise in NOISE:
        assert noise not in done.stdout + done.stderr


CODE = """
import sys, warnings
import espnet_medusa.task
assert "g2p_en" in sys.modules and "g2p_en.g2p" not in sys.modules
warnings.warn("`torch.cuda.amp.autocast(args...)` is deprecated", FutureWarning)
from typeguard import TypeCheckError, typechecked
@typechecked
def whole(number: int): ...
try:
    whole("text")
except TypeCheckError:
    print("checked")
"""


def test_other_warnings_and_checks_are_unchanged(tmp_path):
    script = tmp_path / "script.py"  # typeguard reads the source of functions
    script.write_text(CODE)
    done = run(str(script))
    assert done.stdout == "checked\n"
    assert "FutureWarning: `torch.cuda.amp.autocast" in done.stderr


def load(path, loader):
    spec = spec_from_file_location(path.stem, path, loader=loader(path.stem, str(path)))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_module_on_demand_runs_when_an_attribute_is_read(tmp_path, capsys):
    path = tmp_path / "later.py"
    path.write_text("print('runs')\nvalue = 3\n")
    module = load(path, OnDemand)
    assert not hasattr(module, "__wrapped__") and capsys.readouterr().out == ""
    assert (module.value, module.value) == (3, 3)
    assert capsys.readouterr().out == "runs\n"
    with pytest.raises(AttributeError):
        _ = module.other


def test_names_on_demand_behave_like_the_real_objects(tmp_path, capsys):
    path = tmp_path / "names.py"
    path.write_text(
        "print('runs')\nclass Voice:\n    kind = 'tenor'\n    def __init__(self, n): self.n = n\n"
    )
    module = load(path, NamesOnDemand)
    voice = module.Voice
    assert capsys.readouterr().out == "" and not hasattr(module, "__wrapped__")
    assert not isinstance(3, voice)
    assert capsys.readouterr().out == "runs\n"
    assert voice.kind == "tenor" and voice(2).n == voice(n=2).n == 2
    assert isinstance(voice(1), voice) and isinstance(voice(1), module.Voice)
    assert type(voice(1)) is module.Voice and capsys.readouterr().out == ""
    with pytest.raises(AttributeError):
        _ = module.other


KEPT_BACK = """
import sys
from espnet_medusa import Speech2Text
for name in ("numba", "nltk", "hydra.utils", "espnet2.enh.separator.tfgridnet_separator"):
    assert name not in sys.modules, name
import torch
from espnet2.main_funcs.calculate_all_attentions import AlignmentModule
module = AlignmentModule(8, 4)
assert isinstance(module, torch.nn.Module) and isinstance(module, AlignmentModule)
from espnet2.bin.asr_inference import EnhS2TTask
assert EnhS2TTask.class_choices_list and "numba" in sys.modules
"""


def test_deferred_modules_are_imported_when_used():
    run("-c", KEPT_BACK)


def test_other_lines_of_the_module_are_printed(tmp_path, capsys):
    path = tmp_path / "attention.py"
    for stream, other in (("stdout", "something else"), ("stderr", "a warning")):
        script = f"import sys\nfor line in ('Failed to import Flash Attention: x', {other!r}):\n"
        path.write_text(f"{script}    print(line, file=sys.{stream})\n")
        load(path, WithoutFlashAttention)
        printed = capsys.readouterr()
        assert getattr(printed, stream[3:]) == f"{other}\n"
