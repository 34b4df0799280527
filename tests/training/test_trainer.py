"""A killed and resumed training ends in the same files as an undisturbed one."""

import os
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from espnet2.tasks.asr import ASRTask
from espnet2.train.trainer import Trainer
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from whisper_training import losses, make_corpus, train, weights

from espnet_medusa.task import MedusaASRTask
from espnet_medusa.training.trainer import (
    BEFORE,
    CHECKPOINT,
    GRADIENTS,
    ResumableTrainer,
    drop_previous_checkpoint,
    keep_previous_checkpoint,
    restore_checkpoint,
    save_gradients,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def changes(corpus):
    """Four batches per epoch, three per update: one batch's gradients remain."""
    dropout = {"whisper_model": str(corpus / "whisper"), "dropout_rate": 0.1}
    return {"max_epoch": 2, "accum_grad": 3, "keep_nbest_models": 2, "decoder_conf": dropout}


@pytest.fixture(scope="module")
def undisturbed(corpus, changes, tmp_path_factory):
    return train(corpus, tmp_path_factory.mktemp("undisturbed") / "exp", "finetune", **changes)


class Killed(Exception):
    """Here and now."""


def assert_same(expected: Path, found: Path) -> None:
    """The same losses, files and weights."""
    for part in ("train", "valid"):
        assert losses(expected, part) == losses(found, part) and len(losses(found, part)) == 2
    names = [{path.name for path in folder.glob("*.pth")} for folder in (expected, found)]
    assert names[0] == names[1] > {"1epoch.pth", "2epoch.pth", "valid.loss.ave.pth"}
    for name in sorted(names[0] - {CHECKPOINT}):
        one, other = weights(expected / name), weights(found / name)
        assert [key for key in one if not torch.equal(one[key], other[key])] == [], name


def test_killed_in_an_epoch(corpus, changes, undisturbed, tmp_path):
    updates = []

    def second_fails(*arguments) -> None:
        updates.append(arguments)
        if len(updates) == 2:
            raise Killed

    hook = register_optimizer_step_pre_hook(second_fails)
    with pytest.raises(Killed):
        train(corpus, tmp_path / "exp", "finetune", **changes)
    hook.remove()
    train(corpus, tmp_path / "exp", "finetune", "--resume", "true", **changes)
    assert_same(undisturbed, tmp_path / "exp")


@pytest.mark.parametrize("name", ["1epoch.pth", "checkpoint.pth", "2epoch.pth"])
def test_killed_while_a_file_is_written(corpus, changes, undisturbed, tmp_path, monkeypatch, name):
    save = torch.save

    def write_half(content, path, **options) -> None:
        save(content, path, **options)
        if Path(path).name == name and (name != CHECKPOINT or content["reporter"]["epoch"] == 2):
            os.truncate(path, os.path.getsize(path) // 2)
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(torch, "save", write_half)
        train(corpus, tmp_path / "exp", "finetune", **changes)
    train(corpus, tmp_path / "exp", "finetune", "--resume", "true", **changes)
    assert_same(undisturbed, tmp_path / "exp")


def test_deepspeed_has_espnets_trainer(monkeypatch):
    """DeepSpeed refuses other trainers."""
    trainers = []
    monkeypatch.setattr(MedusaASRTask, "trainer", ResumableTrainer)  # set back afterwards
    record = classmethod(lambda cls, args: trainers.append(cls.trainer))
    monkeypatch.setattr(ASRTask, "main_worker", record)
    for use_deepspeed in (False, True):
        MedusaASRTask.main_worker(Namespace(use_deepspeed=use_deepspeed))
    assert trainers == [ResumableTrainer, Trainer]


STEPS = {"keep": keep_previous_checkpoint, "drop": drop_previous_checkpoint}


@pytest.mark.parametrize(
    ("steps", "content"),
    [
        ("", None),
        ("keep", None),
        ("keep 1", None),
        ("keep 1 drop", "1"),
        ("keep 1 drop keep", "1"),
        ("keep 1 drop keep 2", "1"),
        ("keep 1 drop keep 2 drop", "2"),
    ],
)
def test_a_killed_run_resumes_from_the_last_complete_checkpoint(tmp_path, steps, content):
    """The killed run took these steps; a number is the epoch whose checkpoint it wrote."""
    checkpoint = tmp_path / CHECKPOINT
    for step in steps.split():
        if step in STEPS:
            STEPS[step](tmp_path)
        else:
            checkpoint.write_text(step)
    restore_checkpoint(tmp_path)
    assert not (tmp_path / BEFORE).exists()
    assert (checkpoint.read_text() if checkpoint.exists() else None) == content


def make_optimizer() -> torch.optim.Optimizer:
    """Return an optimizer with two groups; the middle parameter has no gradient."""
    layers = [nn.Parameter(torch.full((2,), float(value))) for value in range(3)]
    groups = [{"params": layers[:2]}, {"params": layers[2:], "lr": 0.5}]
    return torch.optim.Adam(groups, lr=0.1)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def gradients_of(optimizer: torch.optim.Optimizer) -> list[list[float] | None]:
    gradients = [parameter.grad for parameter in parameters_of(optimizer)]
    return [None if gradient is None else gradient.tolist() for gradient in gradients]


def test_gradients_are_saved_in_the_state(tmp_path):
    optimizer, other, plain = make_optimizer(), make_optimizer(), make_optimizer()
    save_gradients(optimizer)
    save_gradients(other)
    assert GRADIENTS not in optimizer.state_dict()
    first, _, last = parameters_of(optimizer)
    (first.sum() + 3 * last[0]).backward()
    torch.save(optimizer.state_dict(), tmp_path / "state.pth")
    state = torch.load(tmp_path / "state.pth", weights_only=True)
    for loading in (other, plain):
        loading.load_state_dict(state)
    assert gradients_of(other) == [[1.0, 1.0], None, [3.0, 0.0]]
    assert gradients_of(plain) == [None, None, None], "as ESPnet alone resumes"
    optimizer.zero_grad()
    other.load_state_dict(optimizer.state_dict())
    assert gradients_of(other) == [None, None, None], "of a checkpoint without"
