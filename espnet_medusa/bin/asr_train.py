"""ESPnet's asr_train with the plugin registered."""

import sys

from espnet_medusa.errors import InputError
from espnet_medusa.task import MedusaASRTask


def get_parser():
    """ESPnet's own parser."""
    return MedusaASRTask.get_parser()


def main(cmd: list[str] | None = None) -> None:
    """Train; options are ESPnet's."""
    try:
        MedusaASRTask.main(cmd=cmd)
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
