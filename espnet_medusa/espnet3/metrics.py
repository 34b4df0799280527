"""Metrics of ESPnet3's stage ``measure``: calls, seconds, and sclite's report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from espnet2.text.cleaner import TextCleaner
from espnet3.components.metrics.base_metric import BaseMetric
from espnet3.contract import Field

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import read_table
from espnet_medusa.recipes.scoring.sclite import score_trn, speaker_of
from espnet_medusa.recipes.scoring.sclite_report import alignment_report, summary_report
from espnet_medusa.recipes.scoring.trn import write_trn


class Ratio(BaseMetric):
    """The sum of one number over the sum of another."""

    def __init__(self):
        super().__init__()
        for name in (field.name for field in self.inputs):
            self.add_state(f"total_{name}", 0.0, "sum")

    def update(self, **values: Sequence[str]) -> None:
        """Add the numbers of several utterances."""
        for name, column in values.items():
            total = getattr(self, f"total_{name}") + sum(map(float, column))
            setattr(self, f"total_{name}", total)

    def compute(self) -> dict[str, float]:
        """Return the ratio of the inputs, in their order."""
        above, below = (getattr(self, f"total_{field.name}") for field in self.inputs[:2])
        return {self.outputs[0].name: round(above / below, 4) if below else 0.0}


class TokensPerCall(Ratio):
    """Tokens per decoder call; 1 without drafts and beams."""

    inputs = (Field("tokens", "text"), Field("decoder_calls", "text"))
    outputs = (Field("tokens_per_call", "number"),)


class RealTimeFactor(Ratio):
    """Seconds of decoding per second of audio, without reading the model and the audio."""

    inputs = (Field("seconds", "text"), Field("audio_seconds", "text"))
    outputs = (Field("rtf", "number"),)


class Speedup(Ratio):
    """Seconds of a baseline over those of this decoding.

    Args:
        baseline: Inference folder of the baseline: the same sets, decoded on the same machine. It
            may have more utterances.
    """

    inputs = (Field("seconds", "text"),)
    outputs = (Field("speedup", "number"),)

    def __init__(self, baseline: str):
        super().__init__()
        self.baseline, self.baseline_seconds = Path(baseline), 0.0

    def __call__(
        self, data: Mapping[str, Path], test_name: str, output_dir: Path | None = None
    ) -> dict[str, float]:
        """Return the speedup on one set; raise InputError if the baseline lacks its seconds."""
        path = self.baseline / test_name / "seconds.scp"
        if not path.is_file():
            raise InputError(f"baseline: {path}: no such file; run stage infer of it first")
        seconds, keys = read_table(path), read_table(Path(data["seconds"])).keys()
        if missing := [key for key in keys if key not in seconds]:
            raise InputError(f"baseline: {path}: lacks {missing[0]}; decode the same utterances")
        self.baseline_seconds = sum(float(seconds[key]) for key in keys)
        return super().__call__(data, test_name, output_dir)

    def compute(self) -> dict[str, float]:
        """Return the speedup."""
        seconds = self.total_seconds
        return {"speedup": round(self.baseline_seconds / seconds, 3) if seconds else 0.0}


class ScliteReport(BaseMetric):
    """sclite's word error rate, with its report and alignments as ``sclite.txt`` of the set.

    sclite's alignments weight a substitution more than an insertion or a deletion. In rare cases
    they have an error more than ESPnet3's ``WER``. ``clean_types``: ESPnet's text cleaners.
    """

    inputs = (Field("ref", "text"), Field("hyp", "text"))
    outputs = (Field("sclite_wer", "number"),)

    def __init__(self, clean_types: Sequence[str] | None = None):
        super().__init__()
        self.clean = TextCleaner(clean_types)
        self.add_state("refs", [], "cat")
        self.add_state("hyps", [], "cat")
        self.keys: list[str] | None = None  # utterance ids; None: numbers
        self.report = ""

    def __call__(
        self, data: Mapping[str, Path], test_name: str, output_dir: Path | None = None
    ) -> dict[str, float]:
        """Score a set whose report has the utterances' ids."""
        self.keys = [*read_table(data["ref"], require_value=False)]
        return super().__call__(data, test_name, output_dir)

    def update(self, *, ref: Sequence[str], hyp: Sequence[str]) -> None:
        """Add the texts of several utterances."""
        self.refs.extend(map(self.clean, ref))
        self.hyps.extend(map(self.clean, hyp))

    def compute(self) -> dict[str, float]:
        """Return the word error rate in percent."""
        keys = self.keys or [f"utterance-{number:06d}" for number in range(len(self.refs))]
        speakers = {key: speaker_of(key, "rm") for key in keys}
        with TemporaryDirectory() as folder:
            names = [Path(folder, name) for name in ("ref.trn", "hyp.trn")]
            for path, texts in zip(names, (self.refs, self.hyps), strict=True):
                rows = {key: text.split() for key, text in zip(keys, texts, strict=True)}
                write_trn(path, rows, speakers)
            score = score_trn(*names, case_sensitive=True, title="text")
        self.report = summary_report(score) + alignment_report(score)
        return {"sclite_wer": round(score.total.error_percent, 2)}

    def write_artifacts(self, test_dir: Path) -> None:
        """Write ``sclite.txt``."""
        Path(test_dir, "sclite.txt").write_text(self.report, encoding="utf-8")
