"""Join data directories, as Kaldi's combine_data.sh: for example one for each language."""

from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files import output_folder
from espnet_medusa.data.kaldi.dump_dir import write_dump_dir
from espnet_medusa.data.kaldi.table import DataError, DataProblem, read_table, sort_ids
from espnet_medusa.data.kaldi.utterances import EXTRA_TABLES

REQUIRED = ("wav.scp", "text", "utt2spk")
OPTIONAL = ("segments", "utt2num_samples", *EXTRA_TABLES)


def combine_data_dirs(
    sources: Sequence[Path], output_dir: Path, languages: Sequence[str] | None = None
) -> int:
    """Write a data directory with the utterances of several, and return their number.

    Args:
        output_dir: Written completely or not at all, and only if an input has changed.
        languages: Language of each source, written to utt2lang; None: the sources' utt2lang.

    Raises:
        InputError: There is not one language for each source, only some have segments, or
            `output_dir` is or contains a source.
        DataError: A table is missing or damaged, or an id is in two sources.
        ValueError: `output_dir` has files but no stamp (``staged_output``).
    """
    output_folder.check_output_dir(output_dir, sources)
    if languages is not None and len(languages) != len(sources):
        counts = f"{len(languages)} languages for {len(sources)} data directories"
        raise InputError(f"{counts}: give one for each")
    parts = [_read(source) for source in sources]
    for part, language in zip(parts, languages or (), strict=False):
        part["utt2lang"] = dict.fromkeys(part["utt2spk"], language)
    without = [source for source, part in zip(sources, parts, strict=True) if not part["segments"]]
    if without and len(without) < len(sources):
        raise InputError(f"{without[0]}: has no segments, others do; all need them, or none")
    names = (*REQUIRED, *OPTIONAL)
    joined = {name: _join(name, sources, [part[name] for part in parts]) for name in names}
    tables = [source / name for source in sources for name in names]
    made_from = output_folder.digest_of_inputs(
        filter(Path.exists, tables), [], {"languages": languages}
    )
    if not output_folder.is_up_to_date(output_dir, made_from):
        with output_folder.staged_output(output_dir, made_from) as folder:
            write_dump_dir(folder, joined)
    return len(joined["utt2spk"])


def _read(source: Path) -> dict[str, dict[str, str]]:
    tables = {name: read_table(source / name, name != "text") for name in REQUIRED}
    for name in OPTIONAL:
        tables[name] = read_table(source / name) if (source / name).exists() else {}
    return tables


def _join(name: str, sources: Sequence[Path], tables: Sequence[dict[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for source, table in zip(sources, tables, strict=True):
        message, remedy = "is also in another directory", "make ids unique"
        if repeated := sort_ids(joined.keys() & table.keys()):
            file = str(source / name)
            raise DataError(DataProblem(file, key, message, remedy) for key in repeated)
        joined |= table
    return joined
