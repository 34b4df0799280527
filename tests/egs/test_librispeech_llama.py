"""LibriSpeech's Speech-LLaMA with a frozen Whisper, on a miniature corpus."""

import subprocess
from pathlib import Path

import kaldiio
import pytest
import yaml
from librispeech_miniature import make_librispeech
from recipes import ROOT, copy_config, link_recipe, run
from tiny_whisper import save_tiny_whisper

from espnet_medusa.kaldi.table import read_table

SOURCE = ROOT / "egs" / "librispeech" / "asr1"
LLAMA = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 16}  # fmt: skip


@pytest.fixture
def recipe(tmp_path):
    """Return the recipe with small decoders that end early."""
    folder = link_recipe(tmp_path, "librispeech/asr1", without=("conf", "results"))
    (folder / "conf" / "report").symlink_to(ROOT / "conf" / "report")
    for way in ("plain", "exact"):
        source = ROOT / "conf" / "decode" / f"{way}.yaml"
        copy_config(source, folder / "conf" / "decode", minlenratio=-3.0, maxlenratio=-8.0)
    for path in SOURCE.glob("conf/train_speech_llama_whisper*.yaml"):
        copy_config(path, folder / "conf", decoder_conf={"llama_conf": LLAMA}, max_epoch=1)
    return folder


def run_llama(recipe: Path, *options: object) -> subprocess.CompletedProcess:
    given = ["--part", "5", "--test_sets", "test_clean", "--ngpu", "0", "--nj", "1"]
    return run(recipe, "./run_speech_llama.sh", *given, "--inference_nj", "1", *options)


def test_recipe_writes_the_tables(recipe, tmp_path, monkeypatch):
    corpus = make_librispeech(tmp_path, ("train-clean-5", "test-clean"), 3, 3, (0.4, 0.8))
    whisper = save_tiny_whisper(tmp_path / "whisper")
    options = ["--whisper_model", whisper, "--librispeech", corpus, "--valid_speakers", "2"]
    options += ["--test_utterances", "4", "--nbpe", "24"]
    options += ["--heads", "speech_llama_whisper_latent_2", "--decodings", "exact"]
    done = run_llama(recipe, *options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    monkeypatch.chdir(recipe)  # paths in scp files begin there
    for name in ("train_clean_5", "dev"):
        memory = kaldiio.load_scp(f"dump/memory/{name}/memory.scp")
        samples = read_table(f"dump/raw/{name}/utt2num_samples")
        assert {key: len(memory[key]) for key in samples} == {
            key: -(-(int(number) // 160) // 2) for key, number in samples.items()
        }, "no padded frames"
    exp = recipe / "exp"
    texts = [
        read_table(path, require_value=False)
        for path in exp.glob("asr_speech_llama_whisper*/*/test_clean_part/text")
    ]
    assert len(texts) == 2 and len(texts[0]) == 4 and texts[0].keys() == texts[1].keys()
    trained = yaml.safe_load((exp / "asr_speech_llama_whisper_latent_2/config.yaml").read_text())
    assert [name for _, name, _ in trained["train_data_path_and_name_and_type"]] == [
        "memory",
        "text",
    ], "no audio in the epochs"
    assert trained["init_param"] == ["exp/asr_speech_llama_whisper/valid.acc.ave.pth"]
    report = (exp / "speech_llama" / "REPORT.md").read_text()
    assert "|part of test-clean|baseline|" in report and "|part of test-clean|latent 2" in report
    assert "|all of test-clean|" not in report and "- Utterances: 4 (part of test-clean)." in report
    assert "a small Speech-LLaMA behind whisper's frozen encoder" in report

    done = run_llama(recipe, "--whisper_model", "openai/whisper-tiny", "--stage", "11")
    assert done.returncode == 2 and "give another --expdir" in done.stderr
