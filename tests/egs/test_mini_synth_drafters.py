"""The recipe of drafters decodes each row of its report."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from recipes import ROOT, link_recipe, record_asr, recorded, run

from espnet_medusa.bin import asr_inference
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.report.plan import read_plan
from espnet_medusa.search.options import check_options

SOURCE = ROOT / "egs" / "mini_synth" / "asr1"
SCRIPT = "./run_drafters.sh"
PLAN = ROOT / "conf" / "report" / "mini_synth_drafters.yaml"


@pytest.fixture
def calls(tmp_path):
    """Return a function that runs the recipe: exit status, and options of each asr.sh call."""
    folder = link_recipe(tmp_path, "mini_synth/asr1")
    record_asr(folder)

    return lambda *options: (run(folder, SCRIPT, *options).returncode, recorded(folder))


def decodings(calls: list[dict[str, str]]) -> list[tuple[str, str]]:
    """Experiment and inference tag, as asr.sh names them, of all calls that decode."""
    result = []
    for call in calls:
        arguments = call.get("--inference_args", "").replace("--", "_").replace(" ", "")
        model = call.get("--inference_asr_model", "").removesuffix(".pth")
        assert "\n" not in call.get("--inference_configs", ""), "asr.sh reads one line"
        for config in call.get("--inference_configs", "").split():
            assert (SOURCE / config).is_file(), config
            tag = f"{Path(config).stem}{arguments}_asr_model_{model}"
            result.append((f"asr_{call['--asr_tag']}", tag))
    return result


def test_every_row_of_the_report_is_decoded_once(calls):
    status, first = calls("--stop_stage", "6")
    assert status == 0
    status, more = calls("--stage", "7", "--stop_stage", "7")
    assert status != 0, "there are no lists to compare"
    result = decodings(first + more)
    # The fake asr.sh writes no lists, so that the stage fails after its last decoding.
    assert len(result) == len(set(result))
    for table in read_plan(PLAN).tables:
        for key, system in table.systems.items():
            tags = [tag for exp, tag in result if exp == system.exp]
            fitting = [tag for tag in tags if tag.split("_asr_model_")[0] == system.decoding]
            assert system.decoding in tags or len(fitting) == 1, (table.title, key)


def test_models_start_from_the_base(calls):
    _, made = calls("--stop_stage", "3")
    trained = {call["--asr_tag"]: call for call in made if "--asr_tag" in call}
    assert [*trained] == ["draft", "draft_version", "ctc", "base_ctc", "conformer"]
    base = "exp/asr_base/valid.acc.ave.pth"
    assert trained["draft"]["--pretrained_model"] == base
    assert trained["base_ctc"]["--pretrained_model"] == base
    assert trained["ctc"]["--pretrained_model"] == f"{base}:encoder:encoder {base}:decoder:decoder"
    assert "--pretrained_model" not in trained["draft_version"]
    assert {call["--nbpe"] for call in made[1:4]} == {"180"}
    assert trained["conformer"]["--train_module"] == "espnet2.bin.asr_train"
    for name, call in trained.items():
        assert call["--asr_config"] == f"conf/train_{name}.yaml"


@pytest.mark.parametrize("path", sorted(SOURCE.glob("conf/decode_*.yaml")), ids=lambda p: p.stem)
def test_decode_configs_have_known_options(path):
    config = yaml.safe_load(path.read_text())
    names = {entry.name for entry in dataclasses.fields(DecodeOptions)}
    options = {name: value for name, value in config.items() if name in names}
    parser = asr_inference.get_parser()
    assert config.keys() <= names | {action.dest for action in parser._actions}
    check_options(DecodeOptions(**options), config.get("beam_size", 20))


def test_hybrid_searches_differ_only_in_drafts_and_precision():
    expected = yaml.safe_load((SOURCE / "conf" / "decode_hybrid.yaml").read_text())
    for way in ("plain", "ctc_draft", "ctc_draft_cost", "plain_int8"):
        config = yaml.safe_load((SOURCE / "conf" / f"decode_hybrid_{way}.yaml").read_text())
        other = {"drafter", "draft_depth", "decoder_precision", "lookahead"}
        assert {key: value for key, value in config.items() if key not in other} == expected
