"""Names of systems: their configuration, initial weights, checkpoint and options."""

import pytest
from cases import cases
from refusals import assert_refused, command_refused

from espnet_medusa.bin import stage
from espnet_medusa.recipes.systems import best_checkpoint


@pytest.fixture
def conf_dir(tmp_path):
    kinds = {"base": "acc", "linear": "acc_heads", "linear_kl": "acc_heads"}
    kinds |= {"llama_latent": "loss", "llama_latent_mwer": "wer_best"}
    for kind, statistic in kinds.items():
        text = f"best_model_criterion:\n-   - valid\n    - {statistic}\n    - min\n"
        (tmp_path / f"train_{kind}.yaml").write_text(text)
    return tmp_path


@pytest.fixture
def plan(conf_dir, capsys):
    """Return a function: system name to (config's name, checkpoint, start, options)."""

    def run(heads: str, *options: str) -> dict[str, tuple[str, ...]]:
        stage.main(["systems", "--heads", heads, "--conf_dir", str(conf_dir), *options])
        lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        return {name: (config.rpartition("/")[2], *rest) for name, config, *rest in lines}

    return run


BASE = "exp/asr_base/valid.acc.ave.pth"
HEADS = "--decoder_conf heads_conf.num_heads="
MWER = "llama_latent_mwer"


def latent(tokens: str) -> str:
    return f"exp/asr_llama_latent_{tokens}/valid.loss.ave.pth"


@cases(
    ("linear", ("linear", "acc_heads", BASE, "")),
    ("linear_kl", ("linear_kl", "acc_heads", BASE, "")),
    ("linear_seed3", ("linear", "acc_heads", BASE, "--seed 3")),
    ("linear_kl_10heads", ("linear_kl", "acc_heads", BASE, f"{HEADS}10")),
    ("llama_latent_4", ("llama_latent", "loss", BASE, f"{HEADS}3")),
    ("llama_latent_4_mwer", (MWER, "wer_best", latent("4"), f"{HEADS}3")),
    ("llama_latent_4_mwer_seed12", (MWER, "wer_best", latent("4"), f"--seed 12 {HEADS}3")),
    ("llama_latent_3heads_mwer", (MWER, "wer_best", latent("3heads"), f"{HEADS}3")),
)
def test_name_defines_the_training(name, expected, plan):
    lines = plan(name)
    assert list(lines) == ["base", name]
    assert lines["base"] == ("train_base.yaml", "valid.acc.ave.pth", "", "")
    assert plan("") == {"base": lines["base"]}
    kind, statistic, *rest = expected
    assert lines[name] == (f"train_{kind}.yaml", f"valid.{statistic}.ave.pth", *rest)


def test_checkpoints_can_be_chosen(plan):
    lines = plan(
        "linear llama_latent_2_mwer", "--base", "linear_kl", "--exp_dir", "exp/own",
        "--base_model", "1epoch.pth", "--heads_model", "latest.pth",
    )  # fmt: skip
    assert lines["linear_kl"][1] == "1epoch.pth"
    assert lines["linear"][1:3] == ("latest.pth", "exp/own/asr_linear_kl/1epoch.pth")
    start = "exp/own/asr_llama_latent_2/latest.pth"
    assert lines["llama_latent_2_mwer"][1:3] == ("latest.pth", start)


@cases(
    ("lineal", ["system lineal: no ", "train_lineal.yaml"]),
    ("linear_2_mwer", ["system linear_2_mwer: no ", "train_linear_mwer.yaml"]),
    ("linear_1", ["system linear_1: has no heads; linear_2 or linear_1heads has one"]),
    ("linear_0heads", ["has no heads"]),
)
def test_mistakes_are_refused(heads, parts, plan, capsys):
    with command_refused(capsys, "systems: error: ", *parts):
        plan(heads)


def test_configuration_without_criterion(plan, conf_dir, capsys):
    (conf_dir / "train_linear.yaml").write_text("max_epoch: 1\n")
    with command_refused(capsys, "train_linear.yaml: no best_model_criterion"):
        plan("linear")
    assert plan("linear", "--heads_model", "latest.pth")["linear"][1] == "latest.pth"


def test_initial_weights_of_the_base_must_exist(plan, tmp_path, capsys):
    weights = tmp_path / "other.pth"
    with command_refused(capsys, "other.pth:encoder:encoder: no such file; train that model"):
        plan("linear", "--base_start", f"{weights}:encoder:encoder")
    weights.touch()
    assert plan("linear", "--base_start", f"{weights}:encoder")["base"][2] == f"{weights}:encoder"
    trained = tmp_path / "exp" / "asr_base" / "valid.acc.ave.pth"
    trained.parent.mkdir(parents=True)
    trained.touch()
    gone = plan("linear", "--base_start", "gone.pth", "--exp_dir", str(tmp_path / "exp"))
    assert gone["base"][2] == "gone.pth", "the base is trained already"


@pytest.mark.parametrize("criteria", ["5", "[5]", "[[valid, acc]]", "{a: b}", "valid"])
def test_criteria_that_name_no_checkpoint(tmp_path, criteria):
    path = tmp_path / "train_base.yaml"
    path.write_text(f"best_model_criterion: {criteria}\n")
    assert_refused("best_model_criterion: .*; allowed: lists such as", best_checkpoint, path)
