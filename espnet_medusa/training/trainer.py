"""ESPnet's trainer, whose runs end in the same weights however often they are killed."""

from pathlib import Path

import torch
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.trainer import Trainer

from espnet_medusa.training.accumulated_gradients import keep_gradients
from espnet_medusa.training.resume_checkpoint import drop, set_aside, take_up


class ResumableTrainer(Trainer):
    """Trains as ESPnet does; a resumed run goes on as if it had never stopped.

    ESPnet has batches and random numbers depend on an epoch's number alone. What this adds to its
    checkpoint, and when the checkpoint counts: ``kept_gradients``, ``kept_checkpoint``.
    """

    @classmethod
    def run(cls, *, optimizers, trainer_options, distributed_option, **others) -> None:
        """ESPnet's interface."""
        folder, is_writer = Path(trainer_options.output_dir), _is_writer(distributed_option)
        for optimizer in optimizers:
            keep_gradients(optimizer)
        if is_writer:
            take_up(folder)
        if distributed_option.distributed:
            torch.distributed.barrier()  # all read the same checkpoint
        super().run(
            optimizers=optimizers,
            trainer_options=trainer_options,
            distributed_option=distributed_option,
            **others,
        )
        if is_writer:
            drop(folder)

    @classmethod
    def train_one_epoch(cls, *, options, distributed_option, **others) -> bool:
        """ESPnet's interface."""
        if _is_writer(distributed_option):
            drop(Path(options.output_dir))
        return super().train_one_epoch(
            options=options, distributed_option=distributed_option, **others
        )

    @classmethod
    def validate_one_epoch(cls, *, options, distributed_option, **others) -> None:
        """ESPnet's interface."""
        super().validate_one_epoch(options=options, distributed_option=distributed_option, **others)
        if _is_writer(distributed_option):
            set_aside(Path(options.output_dir))


def _is_writer(option: DistributedOption) -> bool:
    """Whether this process is the one that writes."""
    return not option.distributed or option.dist_rank == 0
