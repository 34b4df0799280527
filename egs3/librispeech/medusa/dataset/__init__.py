"""LibriSpeech, prepared by the script of the egs recipe, and cached states of a Whisper."""

from espnet3.components.data.base_dataset import BaseDataset

from espnet_medusa.espnet3.dataset import CachedStatesDataset, KaldiDataset, ScriptBuilder


class DatasetBuilder(ScriptBuilder):
    """Runs the script of egs/librispeech/asr1, which downloads what is missing."""

    script = "../../../egs/librispeech/asr1/local/prepare_librispeech.py"


class Dataset(BaseDataset):
    """Utterances of a data directory, or the states that are cached in a folder."""

    def __new__(
        cls, data_dir: str | None = None, states_dir: str | None = None, **options
    ) -> BaseDataset:
        """Return the dataset of the folder that is given."""
        if states_dir is not None:
            return CachedStatesDataset(states_dir, **options)
        return KaldiDataset(data_dir, **options)


__all__ = ["Dataset", "DatasetBuilder"]
