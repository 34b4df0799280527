"""Registration: ESPnet's own commands know the plugin, and only with it."""

import subprocess
import sys

import pytest
from espnet2.tasks.asr import decoder_choices, encoder_choices, model_choices

from espnet_medusa import plugin
from espnet_medusa.bin import python
from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.runtime.espnet_scorer import ScoringWhisperDecoder
from espnet_medusa.training.asr_model import MedusaASRModel


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_register_fills_the_tables_and_may_be_repeated():
    plugin.register()
    plugin.register()
    assert encoder_choices.get_class("hf_whisper") is HFWhisperEncoder
    assert decoder_choices.get_class("whisper_medusa") is ScoringWhisperDecoder
    assert model_choices.get_class("medusa") is MedusaASRModel


def test_a_name_that_is_taken_is_refused(monkeypatch):
    monkeypatch.setitem(encoder_choices.classes, "hf_whisper", int)
    with pytest.raises(RuntimeError, match="hf_whisper.*already"):
        plugin.register()


def test_python_with_the_plugin_runs_modules():
    module = ["-m", "espnet2.bin.asr_train", "--print_config", "--decoder", "whisper_medusa"]
    done = run("-m", "espnet_medusa.bin.python", *module)
    assert done.returncode == 0 and "decoder: whisper_medusa" in done.stdout
    assert run(*module).returncode != 0, "stock python must not know the plugin"


def test_python_with_the_plugin_runs_code_and_scripts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = (
        "import sys; from espnet2.tasks.asr import encoder_choices as choices;"
        "print(choices.get_class('hf_whisper').__name__, sys.argv)"
    )
    python.main(["-c", code, "x"])
    assert "HFWhisperEncoder ['-c', 'x']" in capsys.readouterr().out
    script = tmp_path / "script.py"
    script.write_text(code)
    python.main([str(script), "y"])
    assert f"HFWhisperEncoder ['{script}', 'y']" in capsys.readouterr().out


class Replaced(Exception):
    """This process, by the one that was asked for."""


@pytest.mark.parametrize("arguments", [["--version"], []])
def test_other_calls_go_to_python(monkeypatch, arguments):
    def execv(*call):
        raise Replaced(call)

    monkeypatch.setattr("os.execv", execv)
    with pytest.raises(Replaced) as replaced:
        python.main(arguments)
    assert replaced.value.args == ((sys.executable, [sys.executable, *arguments]),)


def test_processes_that_espnet_spawns_know_the_plugin(tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(
        "import multiprocessing\n"
        "def main():\n"
        "    from espnet_medusa.task import MedusaASRTask\n"
        "    spawn, statuses = multiprocessing.get_context('spawn'), []\n"
        "    for encoder in ('hf_whisper', 'unheard_of'):\n"
        "        command = ['--print_config', '--encoder', encoder]\n"
        "        child = spawn.Process(target=MedusaASRTask.main, kwargs={'cmd': command})\n"
        "        child.start(); child.join(); statuses.append(child.exitcode)\n"
        "    raise SystemExit(statuses != [0, 2])\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    assert run(str(script)).returncode == 0


def test_ours_are_espnets_commands_with_the_plugin():
    done = run("-m", "espnet_medusa.bin.asr_train", "--print_config", "--model", "medusa")
    assert done.returncode == 0 and "model: medusa" in done.stdout
    done = run("-m", "espnet_medusa.bin.asr_inference", "--help")
    assert done.returncode == 0 and "--draft_depth" in done.stdout and "--beam_size" in done.stdout
