"""ESPnet's ASR task for the training configs of ESPnet3 (``task:``)."""

import argparse

from espnet2.asr.espnet_model import ESPnetASRModel

from espnet_medusa.espnet.task import MedusaASRTask


class MedusaTask(MedusaASRTask):
    """A task whose models start from the weights in ``model.init_param``, as in ESPnet2.

    ESPnet3 itself only builds the model.
    """

    @classmethod
    def build_model(cls, args: argparse.Namespace) -> ESPnetASRModel:
        """Build the model in its state at the start of training; errors as ``MedusaASRTask``."""
        return MedusaASRTask.build_initial_model(args)
