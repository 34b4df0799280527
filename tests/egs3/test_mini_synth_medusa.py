"""The ESPnet3 recipe mini_synth/medusa as a miniature: stages, figures and bundle."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jiwer
import pytest
import yaml
from recipes import ROOT

from espnet_medusa.data.kaldi.table import read_table

for package in ("espnet3", "lightning", "dask_jobqueue", "espeakng_loader"):
    pytest.importorskip(package)

SMALL = {"output_size": 16, "num_blocks": 1, "attention_heads": 2, "linear_units": 32}
SPEECH = ["--minutes", 1.5, "--voices", 5, "--dev_utterances", 4, "--test_utterances", 6]
PROGRAM = """
import glob, json, soundfile, sys, types
from pathlib import Path
sys.modules.setdefault("gradio", types.ModuleType("gradio"))  # only pages need it
from espnet3.publication.demo.session import load_demo_session
from espnet3.publication.inference_model import InferenceModel
from espnet3.systems.launch import launch
from espnet_medusa.espnet3.system import CONFIGS, MedusaSystem
def run(config, *stages, decoding="inference"):
    roles = dict(training=config, inference=decoding, metrics="metrics", demo="demo")
    roles["publication"] = "publication"
    words = sum(([f"--{role}_config", f"conf/{name}.yaml"] for role, name in roles.items()), [])
    launch(MedusaSystem, conf_package=CONFIGS, argv=["--stages", *stages, *words])
if __name__ == "__main__":
    run("training", "create_dataset", "train_tokenizer", "cache_states", "collect_stats", "train")
    run("training_heads", "train")
    for decoding in ("inference_baseline", "inference", "inference_typical", "inference_beam"):
        run("training_heads", "infer", "measure", decoding=decoding)
    run("training_heads", "pack_model", "pack_demo")
    packed = InferenceModel.from_packed("exp/training_heads/model_pack", trust_user_code=True)
    key, path = open("data/test/wav.scp").readline().split()
    text = packed({"speech": soundfile.read(path, dtype="float32")[0]})["text"]
    demo = load_demo_session(Path("demo"), Path("demo.yaml"))
    decode = demo.create_inference_fn(demo.input_specs, demo.output_specs)
    samples, rate = soundfile.read(path, dtype="int16")
    print(json.dumps([key, text, decode((rate, samples))]))
"""


def shrink(path: Path, epochs: int) -> None:
    config = yaml.safe_load(path.read_text())
    for part in ("encoder_conf", "decoder_conf"):
        config["model"][part] |= {
            name: SMALL[name] for name in SMALL if name in config["model"][part]
        }
    config["trainer"]["max_epochs"], config["tokenizer"]["vocab_size"] = epochs, 40
    config["parallel"] = {"options": {"processes": False}}  # no worker processes
    if "create_dataset" in config:
        config["create_dataset"]["options"] = SPEECH
    path.write_text(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    root = tmp_path_factory.mktemp("recipe")
    (root / "egs").symlink_to(ROOT / "egs")
    folder = root / "egs3" / "mini_synth" / "medusa"
    shutil.copytree(ROOT / "egs3" / "mini_synth" / "medusa", folder)
    shrink(folder / "conf" / "training.yaml", epochs=4)
    shrink(folder / "conf" / "training_heads.yaml", epochs=2)
    for path in folder.glob("conf/inference*.yaml"):
        text = path.read_text().replace("search: greedy", "search: greedy\n  maxlenratio: -12")
        path.write_text(text)
    (folder / "all.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "all.py"], cwd=folder, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, *json.loads(done.stdout.splitlines()[-1])


def results(folder: Path, decoding: str) -> tuple[dict, dict]:
    """Return the figures of the test set by name, and its texts."""
    output = folder / "exp" / "training_heads" / decoding
    metrics = json.loads((output / "metrics.json").read_text())
    figures = {name: value for sets in metrics.values() for name, value in sets["test"].items()}
    return figures, read_table(output / "test" / "text.scp", require_value=False)


def test_figures_are_those_of_the_texts(recipe):
    folder, *_ = recipe
    spoken = read_table(folder / "data" / "test" / "text")
    (baseline, texts), (_, exact) = (
        results(folder, f"inference{way}") for way in ("_baseline", "")
    )
    assert exact == texts and baseline["tokens_per_call"] <= 1 and baseline["speedup"] == 1
    for decoding in ("inference", "inference_typical", "inference_beam"):
        figures, texts = results(folder, decoding)
        assert texts.keys() == spoken.keys()
        wer = 100 * jiwer.wer([*spoken.values()], [texts[key] or "." for key in spoken])
        assert figures["WER"] == pytest.approx(wer, abs=0.01)
        assert figures["rtf"] > 0 and figures["speedup"] > 0
        test = folder / "exp" / "training_heads" / decoding / "test"
        assert f"{len(spoken)} " in (test / "sclite.txt").read_text()
        counts = (read_table(test / f"{name}.scp") for name in ("tokens", "decoder_calls"))
        tokens, calls = (sum(map(int, table.values())) for table in counts)
        assert figures["tokens_per_call"] == pytest.approx(tokens / calls, abs=1e-4)
        [first, *_] = read_table(test / "segments.scp").values()
        segments = json.loads((folder / first).read_text())["segments"]
        assert " ".join(one["text"] for one in segments) in texts.values()


def test_the_bundle_decodes_as_the_experiment(recipe):
    folder, key, text, shown = recipe
    assert shown == text == results(folder, "inference")[1][key]
    assert (folder / "demo" / "app.py").is_file()
