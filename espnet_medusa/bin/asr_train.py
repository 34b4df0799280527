"""ESPnet's asr_train with this package's models."""

import sys

from torch import distributed

from espnet_medusa.data.errors import InputError
from espnet_medusa.espnet.task import MedusaASRTask


def get_parser():
    return MedusaASRTask.get_parser()


def main(cmd: list[str] | None = None) -> None:
    try:
        MedusaASRTask.main(cmd=cmd)
    except InputError as error:
        sys.exit(f"error: {error}")
    # Otherwise the group's threads may run after the interpreter ends, which aborts the process.
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
