"""The Speech-LLaMA recipe with small models, and its options of asr.sh for each system."""

import pytest
import yaml
from recipes import ROOT, copy_config, link_recipe, record_asr, recorded, run

from espnet_medusa.kaldi.table import read_table

pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")

SOURCE = ROOT / "egs" / "mini_synth" / "asr1"
SYSTEM = "llama_latent_3"
ENCODER = {"output_size": 16, "num_blocks": 1, "attention_heads": 2, "linear_units": 16}
LLAMA = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 16}  # fmt: skip


@pytest.fixture
def recipe(tmp_path):
    """Return the recipe with small models."""
    folder = link_recipe(tmp_path, "mini_synth/asr1", without=("conf",))
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    for way in ("plain", "beam4_threshold"):
        # The models are almost untrained: a minimum length makes them write something.
        source = ROOT / "conf" / "decode" / f"{way}.yaml"
        copy_config(source, folder / "conf" / "decode", minlenratio=-3.0, maxlenratio=-8.0)
    small = {"encoder_conf": ENCODER, "decoder_conf": {"llama_conf": LLAMA}, "max_epoch": 1}
    for path in SOURCE.glob("conf/train_llama*.yaml"):
        copy_config(path, folder / "conf", **small)
    return folder


def test_recipe_with_two_languages_writes_tables(recipe):
    data = "--minutes 0.4 --dev_utterances 2 --test_utterances 2 --nj 1"
    second = "--second_language de --second_minutes 0.3 --second_dev_utterances 2"
    done = run(
        recipe, "./run_speech_llama.sh", "--base_start", "",
        "--local_data_opts", f"{data} {second}", "--nbpe", "60", "--heads", SYSTEM,
        "--decodings", "beam4_threshold", "--test_sets", "test_de", "--eval_valid_set", "false",
        "--nj", "1", "--train_nj", "1", "--inference_nj", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for name in ("train_en_de", "dev_en_de"):
        languages = read_table(recipe / "dump" / "raw" / name / "utt2lang")
        assert set(languages.values()) == {"en", "de"}
        assert all(key.startswith(language) for key, language in languages.items())
    exp = recipe / "exp" / f"asr_{SYSTEM}"
    trained = yaml.safe_load((exp / "config.yaml").read_text())
    assert trained["decoder_conf"]["heads_conf"]["num_heads"] == 2
    assert trained["init_param"] == ["exp/asr_llama/valid.acc.ave.pth"]
    (decoded,) = exp.glob("beam4_threshold_*/test_de/text")
    assert len(read_table(decoded, require_value=False)) == 2
    tables = recipe / "exp" / "speech_llama"
    assert f"{SYSTEM} beam4_threshold" in (tables / "RESULTS.md").read_text()
    assert (tables / "REPORT.md").stat().st_size > 100
    assert not (recipe / "exp" / "RESULTS.md").exists(), "this is the file of the Whisper recipe"


@pytest.fixture
def calls(recipe):
    """Return a function that runs the recipe, and returns the options of each asr.sh call."""
    record_asr(recipe)
    encoder = recipe / "exp" / "asr_base" / "valid.acc.ave.pth"
    encoder.parent.mkdir(parents=True)
    encoder.touch()

    def run_recorded(*options: str) -> list[dict[str, str]]:
        done = run(recipe, "./run_speech_llama.sh", *options)
        assert done.returncode == 0, done.stderr
        return recorded(recipe)

    return run_recorded


def test_each_system_is_trained_from_its_start(calls):
    done = {call["--asr_tag"]: call for call in calls("--stop_stage", "12", "--asr_args", "--x 1")}
    ways = ("projection", "latent")
    expected = ["llama", *(f"llama_{way}_{tokens}" for way in ways for tokens in range(2, 7))]
    expected += [
        f"llama_latent_4_{stage}{seed}"
        for stage in ("ce", "mwer")
        for seed in ("", "_seed2", "_seed3")
    ]
    assert list(done) == expected
    base = done["llama"]
    assert base["--stage"] == "1" and base["--pretrained_model"].endswith(":encoder:encoder")
    assert base["--inference_configs"] == "conf/decode/plain.yaml"
    for name, call in done.items():
        assert call["--train_set"] == "train_en_de" and call["--test_sets"] == "test test_de"
        assert call["--asr_args"].endswith("--x 1") and call["--stop_stage"] == "12"
        if name == "llama":
            continue
        assert call["--stage"] == "11"
        assert call["--inference_configs"].split() == [
            f"conf/decode/{way}.yaml" for way in ("exact", "top_m", "threshold", "beam4_threshold")
        ]
    assert done["llama_projection_6"]["--pretrained_model"] == "exp/asr_llama/valid.acc.ave.pth"
    for seed in ("", "_seed2"):
        stage = done[f"llama_latent_4_mwer{seed}"]
        assert stage["--asr_config"] == "conf/train_llama_latent_mwer.yaml"
        assert stage["--pretrained_model"] == "exp/asr_llama_latent_4/valid.loss.ave.pth"
        assert stage["--inference_asr_model"] == "valid.wer_best.ave.pth"
        assert ("--seed 2 " in stage["--asr_args"]) == bool(seed)


def test_stages_before_training_run_once(calls):
    (call,) = calls("--stage", "3", "--stop_stage", "10", "--heads", "llama_latent_2")
    assert (call["--asr_tag"], call["--stage"]) == ("llama", "3")
    stages = [call["--stage"] for call in calls("--stage", "12", "--stop_stage", "12")]
    assert set(stages) == {"12"} and len(stages) == 17


def test_stages_differ_only_in_mwer():
    mwer, ce = (
        yaml.safe_load((SOURCE / "conf" / f"train_llama_latent_{stage}.yaml").read_text())
        for stage in ("mwer", "ce")
    )
    options = mwer["model_conf"]
    assert options.pop("mwer_weight") > 0
    mwer["model_conf"] = {name: options[name] for name in options if "mwer" not in name}
    assert mwer.pop("best_model_criterion") != ce.pop("best_model_criterion")
    assert mwer == ce


def test_heads_differ_only_in_their_kind():
    kinds = ("projection", "latent")
    configs = [
        yaml.safe_load((SOURCE / "conf" / f"train_llama_{kind}.yaml").read_text()) for kind in kinds
    ]
    assert tuple(config["decoder_conf"].pop("heads") for config in configs) == kinds
    assert configs[0] == configs[1]
    base = yaml.safe_load((SOURCE / "conf" / "train_llama.yaml").read_text())
    decoder = {k: v for k, v in configs[0]["decoder_conf"].items() if k != "heads_conf"}
    assert (base["encoder_conf"], base["decoder_conf"]) == (configs[0]["encoder_conf"], decoder)
