"""conf/train/whisper_*.yaml through asr_train: what trains, stops, resumes; two processes."""

import os
import re
import shutil
from argparse import Namespace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import warm_python
from cases import cases
from espnet2.tasks.abs_task import optim_classes
from espnet2.tasks.asr import ASRTask
from espnet2.train.trainer import Trainer
from experiment import read_lines, write_lines
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Adafactor, WhisperForConditionalGeneration
from waiting import full_length
from whisper_training import CONFIGS, command_of, losses, make_corpus, shapes, train, weights

from espnet_medusa.bin import asr_train, stage
from espnet_medusa.data.options import read_config
from espnet_medusa.espnet import registration
from espnet_medusa.espnet.task import MedusaASRTask
from espnet_medusa.espnet.training import trainer

LAST_LAYER = "decoder.whisper.layers.1."
HEADS = "decoder.heads.", "decoder.token_counts"
TRAINED = {  # system: what its training changes
    "finetune": ("decoder.whisper.",),
    "finetune_audio": ("encoder.whisper.conv", "encoder.whisper.layer", "decoder.whisper."),
    "linear": (LAST_LAYER, *HEADS), "linear_frozen": HEADS, "block": HEADS, "recurrent": HEADS,
    "attending": HEADS, "ctc": ("ctc.",), "ctc_units": ("ctc.",),
}  # fmt: skip
WARM = ("attending", "linear_frozen", "block", "recurrent", "finetune_audio")
STEPS = {"keep": trainer.keep_previous_checkpoint, "drop": trainer.drop_previous_checkpoint}


def changes_of(system: str) -> dict:
    """Three epochs of one or two updates each with the YAML's options, except for the warm-up."""
    warm_up = {"scheduler_conf": {"warmup_steps": 1}} if system in WARM else {}
    return {"max_epoch": 3, "keep_nbest_models": 3, **warm_up}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module", params=TRAINED)
def trained(request, corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp(request.param) / "exp"
    return request.param, train(corpus, output, request.param, **changes_of(request.param))


def test_a_regime_trains_what_it_should_and_nothing_else(trained, corpus):
    system, output = trained
    for part in ("train", "valid"):
        loss = losses(output, part)
        assert loss[1] > loss[2] > loss[3], part
    assert losses(output, "train")[2] == pytest.approx(loss[1], rel=0.1), "what ESPnet logs"
    whisper = WhisperForConditionalGeneration.from_pretrained(corpus / "whisper").state_dict()
    ours = {name: re.sub(r"^model\.(encoder|decoder)\.", r"\1.whisper.", name) for name in whisper}
    start = {ours[name]: value for name, value in whisper.items()}
    first, last = (weights(output / f"{epoch}epoch.pth") for epoch in (1, 3))
    for name, value in last.items():
        if name.startswith(TRAINED[system]):
            assert not torch.equal(value, first[name]), f"{name} did not train"
        elif name in start:
            assert torch.equal(value, start[name]), f"{name} was to stay"
    copy = "decoder.original_last_layer."
    assert any(name.startswith(copy) for name in last) == (system == "linear")
    for name in last:
        if name.startswith(copy):
            assert torch.equal(last[name], start[name.replace(copy, LAST_LAYER)])
    written = read_config(output / "config.yaml", "")["encoder_conf"]
    assert (written["window"], written.get("whisper_model")) == ("audio", None)


def test_every_config_is_tested_and_one_sets_the_window():
    paths = {path.stem.removeprefix("whisper_"): path for path in CONFIGS.glob("*.yaml")}
    windows = {name: read_config(paths[name], "")["encoder_conf"].get("window") for name in paths}
    assert windows == dict.fromkeys(TRAINED) | {"finetune_audio": "audio"}


def test_training_stops_early_and_keeps_the_best(corpus, tmp_path):
    """The learning rate soon makes the loss worse."""
    optim_conf = {"lr": 0.3, "scale_parameter": False, "relative_step": False}
    output = train(
        corpus, tmp_path / "exp", "finetune", max_epoch=30, patience=1, accum_grad=1,
        optim_conf=optim_conf, scheduler="warmuplr", scheduler_conf={"warmup_steps": 8},
    )  # fmt: skip
    loss = losses(output, "valid")
    best = min(loss, key=loss.get)
    assert max(loss) == best + 2 < 30
    kept = weights(output / f"{best}epoch.pth")
    for name in ("valid.loss.best.pth", "valid.loss.ave.pth"):
        found = weights(output / name)
        assert all(torch.equal(found[key], value) for key, value in kept.items()), name


def test_two_processes_take_the_step_of_one(corpus, tmp_path):
    """Some heads have no labels and some parts are frozen; SGD shows gradients."""
    changes = {
        "text": "even_text", "max_epoch": 1, "batch_size": 16, "accum_grad": 1, "optim": "sgd",
        "optim_conf": {"lr": 1.0},
    }  # fmt: skip
    alone = train(corpus, tmp_path / "alone", "linear", **changes)
    command = command_of(corpus, tmp_path / "both", "linear", **changes)
    command += shapes(tmp_path / "speech_shape")
    log = ["--log", str(tmp_path / "both" / "train.log"), "--nj", "2", "--"]
    python = warm_python.executable()
    stage.main(["run_training", *log, python, "-m", "espnet_medusa.bin.asr_train", *command])
    expected, found = (weights(path / "1epoch.pth") for path in (alone, tmp_path / "both"))
    counts = "decoder.token_counts"
    assert found.pop(counts).sum() == expected.pop(counts).sum() / 2, "rank 0's share"
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert found["decoder.heads.heads.0.layers.0.weight"].abs().max() > 1e-3, "it was a step"


def test_a_text_too_long_for_the_decoder_is_dropped_in_stage_10(corpus, tmp_path, capsys):
    keys, stats = tmp_path / "keys", tmp_path / "stats"
    texts = {f"u{index}": "a b c" for index in range(3)} | {"u3": 444 * "a"}
    audio = read_lines(corpus / "wav.scp")
    data = tmp_path / "data"
    shutil.copytree(corpus, data)
    write_lines(data / "text", texts)
    write_lines(data / "wav.scp", {key: audio[key] for key in texts})
    write_lines(keys, dict.fromkeys(texts, 1))
    command = command_of(data, stats / "job.1", "block")
    asr_train.main([*command, "--collect_stats", "true", *shapes(keys)])
    options = ["--jobs", "1", "--job_dir", f"{stats}/job.JOB", "--output_dir", str(stats)]
    options += ["--token_list", f"{corpus}/tokens.txt", "--token_type", "hugging_face"]
    stage.main(["aggregate_stats", *options, "--sum_stats", "false"])
    message = "left out 1 whose text is longer than the decoder's 447 tokens (u3: 448)"
    assert message in capsys.readouterr().out
    for part in ("train", "valid"):
        assert (stats / part / "long_texts").read_text() == "u3 448\n"
        for name in ("speech_shape", "text_shape", "text_shape.hugging_face"):
            lines = (stats / part / name).read_text().splitlines()
            assert [line.split()[0] for line in lines] == ["u0", "u1", "u2"], name
    shutil.rmtree(stats / "train")
    write_lines(data / "utt2spk", {key: key for key in texts})
    write_lines(data / "utt2num_samples", dict.fromkeys(texts, 4800))
    sets = [f"--{part}_dir={data}" for part in ("train", "valid")]
    stage.main(["collect_shapes", *sets, "--output_dir", str(stats), "--", *command])
    assert message in capsys.readouterr().out
    assert "u3" not in (stats / "train" / "text_shape.hugging_face").read_text()
    # Training on them anyway is a clear error, not an index error.
    command = command_of(data, tmp_path / "exp", "block", max_epoch=1)
    with pytest.raises(SystemExit, match="^error: u3: a text of 448 tokens; .* positions for 447"):
        asr_train.main([*command, *shapes(keys)])


def test_adafactor_is_transformers_unless_espnet_has_one(monkeypatch):
    assert optim_classes["adafactor"] is Adafactor
    monkeypatch.setitem(optim_classes, "adafactor", torch.optim.SGD)
    registration.register_asr()
    assert optim_classes["adafactor"] is torch.optim.SGD


class Killed(Exception):
    """Ends a training run."""


@pytest.fixture(scope="module")
def changes(corpus):
    """Four batches per epoch, three per update: one batch's gradients remain."""
    dropout = {"whisper_model": str(corpus / "whisper"), "dropout_rate": 0.1}
    return {"max_epoch": 2, "accum_grad": 3, "keep_nbest_models": 2, "decoder_conf": dropout}


@pytest.fixture(scope="module")
def undisturbed(corpus, changes, tmp_path_factory):
    return train(corpus, tmp_path_factory.mktemp("undisturbed") / "exp", "finetune", **changes)


def assert_same(expected: Path, found: Path) -> None:
    for part in ("train", "valid"):
        assert losses(expected, part) == losses(found, part)
    names = [{path.name for path in folder.glob("*.pth")} for folder in (expected, found)]
    assert names[0] == names[1] > {"1epoch.pth", "2epoch.pth", "valid.loss.ave.pth"}
    for name in sorted(names[0] - {trainer.CHECKPOINT}):
        pair = weights(expected / name), weights(found / name)
        torch.testing.assert_close(*pair, rtol=0, atol=0)


def killed_and_resumed(corpus, output, system, **changes) -> Path:
    hook = register_optimizer_step_pre_hook(Mock(side_effect=[None, Killed]))
    with pytest.raises(Killed):
        train(corpus, output, system, **changes)
    hook.remove()
    return train(corpus, output, system, "--resume", "true", **changes)


RESUMED = ["finetune_audio", "linear", "recurrent", "ctc"]
OTHERS = [system for system in TRAINED if system not in RESUMED]


@pytest.mark.parametrize("trained", [*RESUMED, *full_length(*OTHERS)], indirect=True)
def test_every_regime_resumes_to_the_same_files(trained, corpus, tmp_path):
    system, output = trained
    assert_same(output, killed_and_resumed(corpus, tmp_path / "exp", system, **changes_of(system)))


def test_killed_in_an_epoch(corpus, changes, undisturbed, tmp_path):
    assert_same(undisturbed, killed_and_resumed(corpus, tmp_path / "exp", "finetune", **changes))


@pytest.mark.parametrize("name", ["1epoch.pth", "checkpoint.pth", "2epoch.pth"])
def test_killed_while_a_file_is_written(corpus, changes, undisturbed, tmp_path, monkeypatch, name):
    save = torch.save

    def write_half(content, path, **options) -> None:
        save(content, path, **options)
        if Path(path).name == name and (
            name != trainer.CHECKPOINT or content["reporter"]["epoch"] == 2
        ):
            os.truncate(path, os.path.getsize(path) // 2)
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(torch, "save", write_half)
        train(corpus, tmp_path / "exp", "finetune", **changes)
    train(corpus, tmp_path / "exp", "finetune", "--resume", "true", **changes)
    assert_same(undisturbed, tmp_path / "exp")


def test_a_run_that_ended_early_trains_no_further_epoch(corpus, tmp_path):
    changes = {
        "max_epoch": 9,
        "patience": 1,
        "scheduler": None,
        "optim": "sgd",
        "optim_conf": {"lr": 0.0},
    }
    changes["early_stopping_criterion"] = ["valid", "loss", "min"]
    output = train(corpus, tmp_path / "exp", "finetune", **changes)
    assert [*losses(output, "train")] == [1, 2, 3]
    train(corpus, output, "finetune", "--resume", "true", **changes)
    assert [*losses(output, "train")] == [1, 2, 3]
    changes |= {"patience": 3, "max_epoch": 4}
    train(corpus, output, "finetune", "--resume", "true", **changes)
    assert [*losses(output, "train")] == [1, 2, 3, 4]


def test_deepspeed_has_espnets_trainer(monkeypatch):
    trainers = []
    monkeypatch.setattr(MedusaASRTask, "trainer", trainer.ResumableTrainer)  # set back afterwards
    record = classmethod(lambda cls, args: trainers.append(cls.trainer))
    monkeypatch.setattr(ASRTask, "main_worker", record)
    for use_deepspeed in (False, True):
        MedusaASRTask.main_worker(Namespace(use_deepspeed=use_deepspeed))
    assert trainers == [trainer.ResumableTrainer, Trainer]


@cases(
    ("", None), ("keep", None), ("keep 1", None), ("keep 1 drop", "1"), ("keep 1 drop keep", "1"),
    ("keep 1 drop keep 2", "1"), ("keep 1 drop keep 2 drop", "2"),
)  # fmt: skip
def test_a_killed_run_resumes_from_the_last_complete_checkpoint(steps, content, tmp_path):
    """The killed run took these steps; a number is the epoch whose checkpoint it wrote."""
    checkpoint = tmp_path / trainer.CHECKPOINT
    for step in steps.split():
        if step in STEPS:
            STEPS[step](tmp_path)
        else:
            checkpoint.write_text(step)
    trainer.restore_checkpoint(tmp_path)
    assert not (tmp_path / trainer.BEFORE).exists()
    assert (checkpoint.read_text() if checkpoint.exists() else None) == content


def test_gradients_are_saved_in_the_state(tmp_path):
    """Of parameters in two groups, one of which has no gradient."""
    rows = [[nn.Parameter(torch.full((2,), float(value))) for value in range(3)] for _ in range(3)]
    optimizer, other, plain = (
        torch.optim.Adam([{"params": row[:2]}, {"params": row[2:], "lr": 0.5}]) for row in rows
    )
    trainer.save_gradients(optimizer)
    trainer.save_gradients(other)
    assert trainer.GRADIENTS not in optimizer.state_dict()
    (rows[0][0].sum() + 3 * rows[0][2][0]).backward()
    torch.save(optimizer.state_dict(), tmp_path / "state.pth")
    for loading in (other, plain):
        loading.load_state_dict(torch.load(tmp_path / "state.pth", weights_only=True))
    first, none, last = (parameter.grad for parameter in rows[1])
    assert first.tolist() == [1.0, 1.0] and none is None and last.tolist() == [3.0, 0.0]
    assert all(parameter.grad is None for parameter in rows[2]), "as ESPnet alone resumes"
    optimizer.zero_grad()
    other.load_state_dict(optimizer.state_dict())
    assert all(parameter.grad is None for parameter in rows[1]), "of a checkpoint without"
