"""espnet-medusa-python: python with the plugin."""

import io
import os
import runpy
import subprocess
import sys
from unittest.mock import Mock

import pytest
import yaml
from cases import cases
from refusals import assert_refused

from espnet_medusa.bin import python

WITH_PLUGIN = ("-m", "espnet_medusa.bin.python")
INFERENCE = "espnet2.bin.asr_inference"


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)


@pytest.fixture(autouse=True)
def unchanged_sys(monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize("redirect", [True, False])
def test_inference_is_ours_without_no_redirect(capsys, redirect):
    with pytest.raises(SystemExit):
        python.main([*([] if redirect else ["--no-redirect"]), "-m", INFERENCE, "--none"])
    printed = capsys.readouterr().err  # usage, without help texts, which ESPnet 202611 cannot print
    assert ("--draft_depth" in printed) == redirect
    assert "--maxlenratio" in printed and "usage: asr_inference.py" in printed


@cases(
    ("espnet2.bin.asr_train", "espnet_medusa.bin.asr_train"),
    (INFERENCE, "espnet_medusa.bin.asr_inference"),
    (f"{INFERENCE}_streaming", "espnet_medusa.bin.asr_inference_streaming"),
    ("espnet2.bin.s2t_inference", "espnet_medusa.bin.s2t_inference"),
    ("espnet2.bin.st_inference", "espnet_medusa.bin.st_inference"),
    ("espnet2.bin.launch", "espnet2.bin.launch"),
    ("espnet2.bin.tokenize_text", "espnet2.bin.tokenize_text"),
    ("espnet2.bin.asr_transducer_inference", "espnet2.bin.asr_transducer_inference"),
)
@pytest.mark.parametrize("redirect", [True, False])
def test_modules_run_as_main_with_their_arguments(name, runs, monkeypatch, redirect):
    seen = []
    monkeypatch.setattr(runpy, "run_module", lambda name, run_name: seen.append((name, run_name)))
    chosen, first = (runs, []) if redirect else (name, ["--no-redirect"])
    for module in (["-m", name], [f"-m{name}"]):
        python.main([*first, *module, "--beam_size", "3"])
    assert seen == [(chosen, "__main__")] * 2
    file = f"{chosen.replace('.', os.sep)}.py"
    assert sys.argv[0].endswith(file) and sys.argv[1:] == ["--beam_size", "3"]


@pytest.mark.parametrize("config", [{"model": "medusa"}, {"encoder": "hf_whisper"}, {}], ids=str)
def test_commands_for_other_models_refuse_ours(tmp_path, monkeypatch, config):
    ran, path, search = [], tmp_path / "config.yaml", "maskctc"
    path.write_text(yaml.safe_dump(config | {"decoder": "rnn"}))
    monkeypatch.setattr(runpy, "run_module", lambda name, run_name: ran.append(name))
    command = ["-m", f"{INFERENCE}_{search}", "--asr_train_config", str(path), "--ngpu", "0"]
    if not config:
        python.main(command)
        assert ran == [f"{INFERENCE}_{search}"]
        return
    with pytest.raises(SystemExit, match=f"use_{search}: true; {path} is a model of espnet_med"):
        python.main(command)
    assert ran == []


def test_start_imports_no_large_modules():
    heavy = "('torch', 'numpy', 'transformers', 'espnet', 'espnet2', 'espnet_medusa.espnet.task')"
    code = f"import sys; print([name for name in {heavy} if name in sys.modules])"
    assert run(*WITH_PLUGIN, "-c", code).stdout == "[]\n"


def test_code_scripts_and_stdin_run(tmp_path, monkeypatch, capsys):
    code = (
        "import sys; from espnet2.tasks.asr import encoder_choices as choices;"
        "print(choices.get_class('hf_whisper').__name__, sys.argv)"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    monkeypatch.setattr(sys, "stdin", io.StringIO(code))
    for first, words in (("-c", ["-c", code]), (str(script), [str(script)]), ("-", ["-"])):
        python.main([*words, "x"])
        assert f"HFWhisperEncoder {[first, 'x']}" in capsys.readouterr().out


@cases(
    (["--version"], ["--version"]),
    ([], []),
    (["-u", "-m", "x", "-u"], ["-u", *WITH_PLUGIN, "-m", "x", "-u"]),
    (["-W", "ignore", "-X", "dev", "s"], ["-W", "ignore", "-X", "dev", *WITH_PLUGIN, "s"]),
    (["-um", "x", "-u"], ["-u", *WITH_PLUGIN, "-m", "x", "-u"]),
    (["-uW", "ignore", "-cx = 1"], ["-uW", "ignore", *WITH_PLUGIN, "-c", "x = 1"]),
    (["--no-redirect", "-O", "-c", "1"], ["-O", *WITH_PLUGIN, "--no-redirect", "-c", "1"]),
)
def test_options_of_python_start_a_new_interpreter(given, replaced, monkeypatch):
    monkeypatch.setattr("os.execv", execv := Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        python.main(given)
    execv.assert_called_once_with(sys.executable, [sys.executable, *replaced])


@pytest.mark.parametrize("word", ["-m", "-c"])
def test_an_option_without_its_argument_is_refused(word):
    message = f"Argument expected for the {word} option"
    assert_refused(message, python.main, [word], error=SystemExit)


# Prints whether ESPnet's import is changed, which takes less time than to import it.
SHOWS_HOOKS = """
import sys
names = [name for finder in sys.meta_path for name in getattr(finder, "loaders", ())]
print("espnet2.tasks.asr" in names)
"""
SPAWNS = """
import multiprocessing, runpy, sys
if __name__ == "__main__":
    module, *sys.argv[1:] = sys.argv[1:]
    spawn = multiprocessing.get_context("spawn")
    child = spawn.Process(target=runpy.run_module, args=(module, None, "__main__"))
    child.start(); child.join()
    raise SystemExit(child.exitcode)
"""
TRAINING = ["espnet2.bin.asr_train", "--print_config", "--encoder", "hf_whisper"]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["shows_hooks"], "True\n"),
        pytest.param(TRAINING, "encoder: hf_whisper", marks=pytest.mark.full_length),
    ],
    ids=["hooks", "training"],
)
def test_spawned_processes_have_the_plugin(words, printed, tmp_path):
    (tmp_path / "spawns.py").write_text(SPAWNS)
    (tmp_path / "shows_hooks.py").write_text(SHOWS_HOOKS)
    done = run(*WITH_PLUGIN, "-m", "spawns", *words, cwd=tmp_path)
    assert done.returncode == 0 and printed in done.stdout, done.stderr
