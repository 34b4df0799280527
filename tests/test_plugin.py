"""Registration: ESPnet's own commands know the plugin, and only with it."""

import subprocess
import sys

import pytest
from espnet2.tasks.asr import decoder_choices, encoder_choices, model_choices

import espnet_medusa
from espnet_medusa.decoder.whisper import WhisperMedusaDecoder
from espnet_medusa.encoder import HFWhisperEncoder
from espnet_medusa.model import MedusaASRModel


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_register_fills_the_tables_and_may_be_repeated():
    espnet_medusa.register()
    espnet_medusa.register()
    assert encoder_choices.get_class("hf_whisper") is HFWhisperEncoder
    assert decoder_choices.get_class("whisper_medusa") is WhisperMedusaDecoder
    assert model_choices.get_class("medusa") is MedusaASRModel


def test_a_name_that_is_taken_is_refused(monkeypatch):
    monkeypatch.setitem(encoder_choices.classes, "hf_whisper", int)
    with pytest.raises(RuntimeError, match="hf_whisper.*already"):
        espnet_medusa.register()


def test_python_with_the_plugin_runs_modules_code_and_scripts(tmp_path):
    module = ["-m", "espnet2.bin.asr_train", "--print_config", "--decoder", "whisper_medusa"]
    done = run("-m", "espnet_medusa.bin.python", *module)
    assert done.returncode == 0 and "decoder: whisper_medusa" in done.stdout
    assert run(*module).returncode != 0, "stock python must not know the plugin"
    code = (
        "import sys; from espnet2.tasks.asr import encoder_choices as choices;"
        "print(choices.get_class('hf_whisper').__name__, sys.argv)"
    )
    done = run("-m", "espnet_medusa.bin.python", "-c", code, "x")
    assert "HFWhisperEncoder ['-c', 'x']" in done.stdout
    script = tmp_path / "script.py"
    script.write_text(code)
    done = run("-m", "espnet_medusa.bin.python", str(script), "y")
    assert f"HFWhisperEncoder ['{script}', 'y']" in done.stdout
    assert "Python 3" in run("-m", "espnet_medusa.bin.python", "--version").stdout


def test_processes_that_espnet_spawns_know_the_plugin(tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(
        "import multiprocessing\n"
        "def main():\n"
        "    from espnet_medusa.task import MedusaASRTask\n"
        "    command = ['--print_config', '--encoder', 'hf_whisper']\n"
        "    spawn = multiprocessing.get_context('spawn')\n"
        "    child = spawn.Process(target=MedusaASRTask.main, kwargs={'cmd': command})\n"
        "    child.start(); child.join(); raise SystemExit(child.exitcode)\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    assert run(str(script)).returncode == 0
    script.write_text(script.read_text().replace("hf_whisper", "unheard_of"))
    assert run(str(script)).returncode == 2


def test_ours_are_espnets_commands_with_the_plugin():
    done = run("-m", "espnet_medusa.bin.asr_train", "--print_config", "--model", "medusa")
    assert done.returncode == 0 and "model: medusa" in done.stdout
    done = run("-m", "espnet_medusa.bin.asr_inference", "--help")
    assert done.returncode == 0 and "--draft_depth" in done.stdout and "--beam_size" in done.stdout
