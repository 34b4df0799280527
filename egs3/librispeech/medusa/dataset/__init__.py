"""LibriSpeech, prepared by the script of the egs recipe, and cached states of a Whisper."""

from espnet_medusa.espnet3.dataset import CachedStatesDataset, KaldiDataset, ScriptBuilder


class DatasetBuilder(ScriptBuilder):
    """Runs the script of egs/librispeech/asr1, which downloads what is missing."""

    script = "../../../egs/librispeech/asr1/local/prepare_librispeech.py"


def Dataset(  # noqa: N802 (ESPnet3's name)
    data_dir: str | None = None, states_dir: str | None = None, **options
) -> KaldiDataset | CachedStatesDataset:
    """Return the utterances of a data directory, or the states cached in a folder."""
    if states_dir is not None:
        return CachedStatesDataset(states_dir, **options)
    return KaldiDataset(data_dir, **options)


__all__ = ["Dataset", "DatasetBuilder"]
