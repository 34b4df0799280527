"""ESPnet's import messages are silenced; replacements in its modules behave like the originals."""

import os
import shlex
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import yaml
from asr_sh_commands import REFERENCES
from espnet2.tasks import abs_task
from espnet2.utils.config_argparse import ArgumentParser
from espnet2.utils.yaml_no_alias_safe_dump import yaml_no_alias_safe_dump
from refusals import assert_refused
from tiny_whisper import save_whisper_of_bytes, whisper_experiment

from espnet_medusa.data.errors import InputError
from espnet_medusa.espnet.upstream.quiet import Deferred, OnDemand, WithoutFlashAttention

# Each command runs as `python -m` does; the first one imports most of ESPnet.
CODE = """
import runpy, sys, warnings
from espnet_medusa.bin import python
python.main(sys.argv[1:])
sys.argv = ["asr_inference", "--help"]
try:
    runpy.run_module("espnet_medusa.bin.asr_inference", run_name="__main__")
except SystemExit as end:
    assert end.code == 0
from espnet_medusa import Speech2Text
for name in ("numba", "nltk", "hydra.utils", "espnet2.enh.separator.tfgridnet_separator",
             "espnet2.tasks.asr", "espnet2.tasks.lm",
             "torch._dynamo", "transformers.modeling_utils"):
    assert name not in sys.modules, name
import torch
from espnet2.main_funcs.calculate_all_attentions import AlignmentModule
module = AlignmentModule(8, 4)
assert isinstance(module, torch.nn.Module) and isinstance(module, AlignmentModule)
from espnet2.bin.asr_inference import LMTask
assert LMTask.class_choices_list and "espnet2.tasks.lm" in sys.modules
from espnet2.bin import asr_inference
if hasattr(asr_inference, "EnhS2TTask"):  # ESPnet 202511
    assert asr_inference.EnhS2TTask.class_choices_list and "numba" in sys.modules
import espnet_medusa.bin.asr_train
from importlib.util import find_spec  # ESPnet 202611 does not install it
assert "g2p_en" in sys.modules or find_spec("g2p_en") is None
assert "g2p_en.g2p" not in sys.modules
warnings.warn("`torch.cuda.amp.autocast(args...)` is deprecated", FutureWarning)
"""
# Typeguard checks functions that are not ESPnet's.
CHECKED = """
from typeguard import TypeCheckError, typechecked
@typechecked
def whole(number: int): ...
try:
    whole("text")
except TypeCheckError:
    print("checked")
"""


def test_commands_print_only_their_output_and_import_deferred_modules_when_used(tmp_path):
    script = tmp_path / "script.py"  # typeguard reads the source of functions
    script.write_text(CODE + CHECKED)
    done = subprocess.run(
        [sys.executable, script, *shlex.split(REFERENCES.words)], capture_output=True, text=True,
        input="u1 one  two\nu2 drei vier\n",
        env={**os.environ, "PYTHONOPTIMIZE": ""},  # typeguard does nothing under -O
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    command, warning, _ = done.stderr.splitlines()  # ESPnet's commands print their command line
    assert "tokenize_text.py -f 2-" in command
    assert "FutureWarning: `torch.cuda.amp.autocast" in warning, "only this one, and its line"
    assert done.stdout.startswith("one two\ndrei vier\nusage: asr_inference ")
    assert done.stdout.endswith("\nchecked\n")
    noise = ("nltk", "Flash Attention", "autocast", "Warning")
    assert not [word for word in noise if word in done.stdout + command]


def load(path, loader):
    spec = spec_from_file_location(path.stem, path, loader=loader(path.stem, str(path)))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VOICE = "print('runs')\nclass Voice:\n    kind = 'tenor'\n    def __init__(self, n): self.n = n\n"


def test_a_module_on_demand_runs_when_it_is_used(tmp_path, capsys):
    path = tmp_path / "later.py"
    path.write_text(VOICE)
    module = load(path, OnDemand)
    assert not hasattr(module, "__wrapped__") and capsys.readouterr().out == ""
    assert module.Voice.kind == "tenor" and capsys.readouterr().out == "runs\n"
    assert module.Voice(2).n == 2 and capsys.readouterr().out == ""
    with pytest.raises(AttributeError):
        _ = module.other


def test_a_deferred_name_imports_its_module_when_it_is_used(tmp_path, capsys, monkeypatch):
    (tmp_path / "voices_on_demand.py").write_text(VOICE)
    monkeypatch.syspath_prepend(tmp_path)
    voice = Deferred("voices_on_demand", "Voice")
    assert not isinstance(3, voice) and capsys.readouterr().out == ""
    assert voice.kind == "tenor" and capsys.readouterr().out == "runs\n"
    module = sys.modules["voices_on_demand"]
    assert type(voice(1)) is module.Voice and voice(2).n == voice(n=2).n == 2
    assert isinstance(voice(1), voice) and not isinstance(3, voice)
    with pytest.raises(AttributeError):
        _ = Deferred("voices_on_demand", "other").kind


# Importing the package changes only ESPnet's tables and broken modules.
PACKAGE_FIRST = """
import os, sys, warnings
before = dict(os.environ), [*warnings.filters]
import espnet_medusa
assert (dict(os.environ), warnings.filters) == before
import typeguard
assert typeguard.typechecked.__module__ == "typeguard"
typeguard.typechecked = lambda target: target  # or checks of ESPnet's functions take 10 s
from espnet2.bin.asr_inference import ASRTask, LMTask
from espnet2.tasks.asr import encoder_choices
assert isinstance(ASRTask, type) and isinstance(LMTask, type)
assert "hf_whisper" in encoder_choices.classes
import scipy.signal
assert "__getattr__" not in vars(scipy.signal)
import numpy
speech2text = espnet_medusa.Speech2Text(*sys.argv[1:], search="greedy", maxlenratio=-5)
assert speech2text(numpy.zeros(9000, numpy.float32))
"""
ESPNET_FIRST = """
import typeguard
typeguard.typechecked = lambda target: target
from espnet2.tasks.asr import encoder_choices as choices
from espnet2.text.whisper_tokenizer import OpenAIWhisperTokenizer as Tokenizer
assert 'hf_whisper' not in choices.classes
import espnet_medusa
assert choices.get_class('hf_whisper').__name__ == "HFWhisperEncoder"
assert Tokenizer('whisper_en').text2tokens('a') == ["Ġa"]
"""
# A program that decodes.
DECODES = """
import sys
from espnet_medusa import transcribe
from espnet2.bin.asr_inference import ASRTask, Speech2Text
assert isinstance(ASRTask, type)  # not deferred
assert "g2p_en.g2p" not in sys.modules
from typeguard import typechecked
of_espnet = Speech2Text.__call__
assert typechecked(of_espnet) is of_espnet
"""
# Runs each program in a process that has imported what ESPnet imports, which takes seconds.
FORKS = """
import contextlib, os, runpy, sys, traceback
import hydra.utils, librosa, numba, scipy.stats, torch._dynamo
with contextlib.suppress(ImportError):
    import nltk  # ESPnet 202611 imports it only in training
from transformers.models.bart import modeling_bart
assert not [name for name in sys.modules if name.startswith(("espnet", "typeguard", "g2p_en"))]
programs, sys.argv[1:] = sys.argv[3:], sys.argv[1:3]
for program in programs:
    child = os.fork()
    if child == 0:
        output = os.open(f"{program}.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1); os.dup2(output, 2)
        try:
            runpy.run_path(program, run_name="__main__")
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, open(f"{program}.txt").read()
"""


def test_the_package_and_espnet_may_be_imported_in_any_order(tmp_path):
    """And a program that decodes imports ESPnet quietly."""
    experiment = whisper_experiment(tmp_path, save_whisper_of_bytes(tmp_path / "weights"))
    codes = {"package_first": PACKAGE_FIRST, "espnet_first": ESPNET_FIRST}
    codes["decodes"] = DECODES + CHECKED
    for name, code in codes.items():
        (tmp_path / f"{name}.py").write_text(code)
    command = [sys.executable, "-c", FORKS, experiment.config, experiment.model]
    command += [f"{name}.py" for name in codes]
    environment = {**os.environ, "PYTHONOPTIMIZE": ""}
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "decodes.py.txt").read_text() == "checked\n"


# Without the modules that decode.
BEFORE_TORCH = """
import os, sys, types
import espnet_medusa
assert not {"torch", "numpy", "espnet2"} & {*sys.modules}
espnet_medusa.import_module = lambda name: types.SimpleNamespace(transcribe=name)
assert espnet_medusa.transcribe == "espnet_medusa.transcription.transcribe"
assert os.environ["GOMP_SPINCOUNT"] == "3000" and "torch" not in sys.modules
"""


def test_the_package_sets_options_of_torch_before_it_is_imported():
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    subprocess.run([sys.executable, "-c", BEFORE_TORCH], check=True, env=environment)


def test_other_lines_of_the_module_are_printed(tmp_path, capsys):
    path = tmp_path / "attention.py"
    for stream, other in (("stdout", "something else"), ("stderr", "a warning")):
        script = f"import sys\nfor line in ('Failed to import Flash Attention: x', {other!r}):\n"
        path.write_text(f"{script}    print(line, file=sys.{stream})\n")
        load(path, WithoutFlashAttention)
        assert getattr(capsys.readouterr(), stream[3:]) == f"{other}\n"


DOCUMENT = """
token_list: ["!", "<|endoftext|>", "\\u00e9", 'null', '~', "#", yes]
frontend: null
optim_conf: &same {lr: 1e-3}
again: *same
"""
BOMB = "[" * 100_000


def test_tasks_read_yaml_as_before(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(DOCUMENT)
    with path.open(encoding="utf-8") as file:
        config = abs_task.yaml.safe_load(file)
    assert config == yaml.safe_load(DOCUMENT)
    assert abs_task.yaml.safe_dump is yaml.safe_dump and yaml.safe_load.__module__ == "yaml"
    path.write_text(BOMB)
    with path.open(encoding="utf-8") as file, pytest.raises(InputError, match="100 deep"):
        abs_task.yaml.safe_load(file)


def test_tasks_write_yaml_as_before(tmp_path):
    config = yaml.safe_load(DOCUMENT)
    config |= {"long": "a word " * 40, "shift": "\u3042\n b: ", "at": None}
    options = {"indent": 4, "sort_keys": False}
    with (tmp_path / "config.yaml").open("w", encoding="utf-8") as file:
        abs_task.yaml_no_alias_safe_dump(config, file, **options)
    written = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(written) == config and "&" not in written
    assert abs_task.yaml_no_alias_safe_dump is not yaml_no_alias_safe_dump
    assert written == yaml_no_alias_safe_dump(config, **options)


@pytest.mark.parametrize("text", [BOMB, "a: [", "a: !!bool x", "\u00e9"])
def test_commands_refuse_a_config_that_is_not_yaml(tmp_path, text):
    path = tmp_path / "decode.yaml"
    path.write_text(text, encoding="latin-1")
    parser = ArgumentParser()
    parser.add_argument("--a")
    message, command = rf"^error: {path}: cannot be read \(", ["--config", str(path)]
    assert_refused(message, parser.parse_args, command, error=SystemExit)
    path.write_text("a: {b: 1}")
    assert parser.parse_args(["--config", str(path)]).a == {"b": 1}
