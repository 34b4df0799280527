"""A corpus that espeak-ng synthesizes, with the script of the egs recipe."""

from espnet_medusa.espnet3.dataset import KaldiDataset as Dataset
from espnet_medusa.espnet3.dataset import ScriptBuilder


class DatasetBuilder(ScriptBuilder):
    """Runs the script of egs/mini_synth/asr1."""

    script = "../../../egs/mini_synth/asr1/local/make_corpus.py"


__all__ = ["Dataset", "DatasetBuilder"]
