"""ESPnet's trainer with resumable runs: a killed and restarted run ends in the same weights.

ESPnet seeds batches and random numbers by the epoch. This trainer adds three things:

- If ``accum_grad`` does not divide an epoch's batches, the gradients of the last batches belong to
  the next epoch's first update. The optimizer's state, and so ESPnet's checkpoint, contains them.
- ESPnet overwrites checkpoint.pth, then writes the epoch's weights and the links to the best ones.
  The previous checkpoint is renamed to checkpoint.before.pth until all of these files are written.
  A run killed in between resumes from it and trains the epoch again.
- A run that ended early (``patience``) trains no further epoch when it is started again.
"""

from pathlib import Path

import torch
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import Reporter
from espnet2.train.trainer import Trainer

GRADIENTS = "gradients"
CHECKPOINT, BEFORE = "checkpoint.pth", "checkpoint.before.pth"


class ResumableTrainer(Trainer):
    """ESPnet's trainer; a resumed run equals an uninterrupted one."""

    @classmethod
    def run(cls, **arguments) -> None:
        folder = Path(arguments["trainer_options"].output_dir)
        distributed_option = arguments["distributed_option"]
        is_writer = _is_writer(distributed_option)
        for optimizer in arguments["optimizers"]:
            save_gradients(optimizer)
        if is_writer:
            restore_checkpoint(folder)
        if distributed_option.distributed:
            torch.distributed.barrier()  # all processes read the same checkpoint
        end_early(arguments["trainer_options"])
        super().run(**arguments)
        if is_writer:
            drop_previous_checkpoint(folder)

    @classmethod
    def train_one_epoch(cls, **arguments) -> bool:
        if _is_writer(arguments["distributed_option"]):
            drop_previous_checkpoint(Path(arguments["options"].output_dir))
        return super().train_one_epoch(**arguments)

    @classmethod
    def validate_one_epoch(cls, **arguments) -> None:
        super().validate_one_epoch(**arguments)
        if _is_writer(arguments["distributed_option"]):
            keep_previous_checkpoint(Path(arguments["options"].output_dir))


def end_early(options) -> None:
    """Reduce ``max_epoch`` to the checkpoint's epoch if this epoch met ``patience``."""
    checkpoint = Path(options.output_dir) / CHECKPOINT
    if not options.resume or options.patience is None or not checkpoint.exists():
        return
    reporter = Reporter()
    states = torch.load(checkpoint, map_location="cpu", weights_only=False, mmap=True)
    reporter.load_state_dict(states["reporter"])
    if reporter.check_early_stopping(options.patience, *options.early_stopping_criterion):
        options.max_epoch = reporter.get_epoch()


def _is_writer(option: DistributedOption) -> bool:
    return not option.distributed or option.dist_rank == 0


def save_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Add the parameters' gradients to the optimizer's state; loading the state sets them.

    With ``DistributedDataParallel`` the gradients are the same in all processes. ESPnet without the
    plugin ignores them.
    """
    optimizer.register_state_dict_post_hook(_add_gradients)
    optimizer.register_load_state_dict_pre_hook(_set_gradients)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _add_gradients(optimizer: torch.optim.Optimizer, state: dict) -> None:
    gradients = {
        index: parameter.grad
        for index, parameter in enumerate(_parameters(optimizer))
        if parameter.grad is not None
    }
    if gradients:
        state[GRADIENTS] = gradients


def _set_gradients(optimizer: torch.optim.Optimizer, state: dict) -> None:
    gradients = state.get(GRADIENTS, {})
    for index, parameter in enumerate(_parameters(optimizer)):
        gradient = gradients.get(index)
        parameter.grad = None if gradient is None else gradient.to(parameter)


def keep_previous_checkpoint(folder: Path) -> None:
    """Rename the checkpoint before ESPnet writes the next; without one, write an empty file."""
    if (folder / CHECKPOINT).exists():
        (folder / CHECKPOINT).replace(folder / BEFORE)
    else:
        (folder / BEFORE).touch()


def drop_previous_checkpoint(folder: Path) -> None:
    """Remove the previous checkpoint once all files of the epoch are written."""
    (folder / BEFORE).unlink(missing_ok=True)


def restore_checkpoint(folder: Path) -> None:
    """Restore the previous checkpoint if a run was killed while it wrote the next one."""
    before = folder / BEFORE
    if not before.exists():
        return
    if before.stat().st_size:
        before.replace(folder / CHECKPOINT)
    else:
        (folder / CHECKPOINT).unlink(missing_ok=True)
        before.unlink()
