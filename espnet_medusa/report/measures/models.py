"""Which model the experiments of a table are of."""

from collections.abc import Sequence

from espnet_medusa.report.measures.decodings import Decoding
from espnet_medusa.report.measures.table_rows import find_decoding
from espnet_medusa.report.plan.report_plan import WHISPER_MODEL, TablePlan

RECORD = "whisper_model"  # whisper.sh's, beside the experiments
NOT_RUN = "not run yet"
NOT_RECORDED = f"Whisper of a size that no file {RECORD} beside the experiments tells"


def model_name(table: TablePlan, decodings: Sequence[Decoding]) -> str:
    """What our figures of a table are of.

    Args:
        table: The plan, with a model.
        decodings: Of the experiments.

    Raises:
        InputError: Several decodings fit a row.
    """
    if WHISPER_MODEL not in table.model:
        return table.model
    found = [
        find_decoding(decodings, system, test_set, label)
        for test_set, label in table.test_sets.items()
        for system in table.systems.values()
    ]
    records = [decoding.exp_dir.absolute().parent / RECORD for decoding in found if decoding]
    if not records:
        return NOT_RUN
    names = [
        # A local model's folder is nobody's business; its name says enough.
        path.read_text(encoding="utf-8").strip().rstrip("/").split("/")[-1]
        if path.is_file()
        else NOT_RECORDED
        for path in dict.fromkeys(records)
    ]
    return table.model.replace(WHISPER_MODEL, ", ".join(dict.fromkeys(names)))
