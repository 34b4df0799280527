"""The recipe of drafters: what it hands to asr.sh is what its report asks for."""

import dataclasses
import subprocess
from pathlib import Path

import pytest
import warm_python
import yaml

from espnet_medusa.bin import asr_inference
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.report.plan import read_plan
from espnet_medusa.search.options import check_options

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "egs" / "mini_synth" / "asr1"
PLAN = ROOT / "conf" / "report" / "mini_synth_drafters.yaml"


@pytest.fixture
def recipe(tmp_path):
    """Run it with a stand-in for asr.sh; gives the exit status and the options of each call."""
    folder = tmp_path / "egs" / "mini_synth" / "asr1"
    folder.mkdir(parents=True)
    (tmp_path / "egs" / "TEMPLATE").symlink_to(ROOT / "egs" / "TEMPLATE")
    for name in ("path.sh", "conf", "run_drafters.sh"):
        (folder / name).symlink_to((SOURCE / name).resolve())
    script = folder / "asr.sh"
    script.write_text(
        "#!/usr/bin/env bash\nprintf '%s\\037' \"$@\" >> calls\nprintf '\\036' >> calls\n"
    )
    script.chmod(0o755)

    def run(*options: str) -> tuple[int, list[dict[str, str]]]:
        (folder / "calls").unlink(missing_ok=True)
        done = subprocess.run(
            ["./run_drafters.sh", *options], cwd=folder, text=True, capture_output=True,
            env=warm_python.environment(),
        )  # fmt: skip
        calls = (folder / "calls").read_text().split("\036")[:-1]
        words = [call.split("\037")[:-1] for call in calls]
        return done.returncode, [dict(zip(w[::2], w[1::2], strict=True)) for w in words]

    return run


def decodings(calls: list[dict[str, str]]) -> list[tuple[str, str]]:
    """Experiment and inference tag, as asr.sh names them, of all calls that decode."""
    found = []
    for call in calls:
        arguments = call.get("--inference_args", "").replace("--", "_").replace(" ", "")
        model = call.get("--inference_asr_model", "").removesuffix(".pth")
        assert "\n" not in call.get("--inference_configs", ""), "asr.sh reads one line"
        for config in call.get("--inference_configs", "").split():
            assert (SOURCE / config).is_file(), config
            tag = f"{Path(config).stem}{arguments}_asr_model_{model}"
            found.append((f"asr_{call['--asr_tag']}", tag))
    return found


def test_every_row_of_the_report_is_decoded_once(recipe):
    status, calls = recipe("--stop_stage", "6")
    assert status == 0
    status, more = recipe("--stage", "7", "--stop_stage", "7")
    assert status != 0, "there are no lists to compare"
    found = decodings(calls + more)
    # The stand-in leaves no lists, so that the stage ends behind its last decoding.
    assert len(found) == len(set(found))
    for table in read_plan(PLAN).tables:
        for key, system in table.systems.items():
            tags = [tag for exp, tag in found if exp == system.exp]
            fitting = [tag for tag in tags if tag.split("_asr_model_")[0] == system.decoding]
            assert system.decoding in tags or len(fitting) == 1, (table.title, key)


def test_models_start_from_the_base(recipe):
    _, calls = recipe("--stop_stage", "3")
    trained = {call["--asr_tag"]: call for call in calls if "--asr_tag" in call}
    assert [*trained] == ["draft", "draft_version", "ctc", "base_ctc", "conformer"]
    base = "exp/asr_base/valid.acc.ave.pth"
    assert trained["draft"]["--pretrained_model"] == base
    assert trained["base_ctc"]["--pretrained_model"] == base
    assert trained["ctc"]["--pretrained_model"] == f"{base}:encoder:encoder {base}:decoder:decoder"
    assert "--pretrained_model" not in trained["draft_version"]
    assert {call["--nbpe"] for call in calls[1:4]} == {"180"}
    assert trained["conformer"]["--train_module"] == "espnet2.bin.asr_train"
    for name, call in trained.items():
        assert call["--asr_config"] == f"conf/train_{name}.yaml"


@pytest.mark.parametrize("path", sorted(SOURCE.glob("conf/decode_*.yaml")), ids=lambda p: p.stem)
def test_decode_configs_hold_options_that_are_known(path):
    config = yaml.safe_load(path.read_text())
    names = {entry.name for entry in dataclasses.fields(DecodeOptions)}
    own = {name: value for name, value in config.items() if name in names}
    parser = asr_inference.get_parser()
    assert config.keys() <= names | {action.dest for action in parser._actions}
    check_options(DecodeOptions(**own), config.get("beam_size", 20))


def test_hybrid_searches_differ_in_drafts_and_precision_alone():
    expected = yaml.safe_load((SOURCE / "conf" / "decode_hybrid.yaml").read_text())
    for way in ("plain", "ctc_draft", "ctc_draft_cost", "plain_int8"):
        config = yaml.safe_load((SOURCE / "conf" / f"decode_hybrid_{way}.yaml").read_text())
        other = {"drafter", "draft_depth", "decoder_precision", "lookahead"}
        assert {key: value for key, value in config.items() if key not in other} == expected
