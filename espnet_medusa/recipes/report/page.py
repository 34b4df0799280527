"""The page of a decoded test set: a table of its utterances, and their decodings."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import read_results, read_table
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.journal import FAILED, JOURNAL, Decoded, read_journal
from espnet_medusa.recipes.job_files import job_folders
from espnet_medusa.recipes.report.decodings import DecodedSet, find_baselines
from espnet_medusa.recipes.report.incomplete import IncompleteSets
from espnet_medusa.recipes.score import utterance_ids
from espnet_medusa.recipes.scoring.sclite import score_trn
from espnet_medusa.transcription.page.content import Shown, show

PAGE = "decoding.html"
DAMAGED = "is missing or damaged; decode again"
CASE_SENSITIVE = "\nAttributes: Case_sensitve"  # in sclite's spelling; also in our reports

Alignment = list[tuple[str, str | None, str | None]]


def write_pages(
    decodings: Sequence[DecodedSet],
    baseline_dir: Path | None,
    embed_audio: bool,
    incomplete: IncompleteSets,
) -> list[Path]:
    """Write the pages of all sets with traces; ``baseline_dir``: EXP/TAG of the baseline, or None.

    ``incomplete`` receives sets with a damaged journal. Raise InputError if no set has traces.
    """
    traced = []
    for decoding in decodings:
        with incomplete.noting(decoding.exp_dir, decoding.folder):
            traced += [decoding] if has_traces(decoding.folder) else []
    incomplete.check_rest(traced)
    if not traced:
        raise InputError(
            "--html: no set has traces; decode with trace: true (in the decode config, or "
            "--inference_args '--trace true')"
        )
    baselines = find_baselines(traced, baseline_dir)
    pages = []
    for item in traced:
        with incomplete.noting(item.exp_dir, item.folder):
            pages.append(write_set_page(item, baselines[item.test_set], embed_audio))
    return pages


def has_traces(folder: Path) -> bool:
    """Return whether the jobs of a decoded set have recorded traces."""
    journals = [*(folder / "logdir").glob(f"output.*/{JOURNAL}")]
    for journal in journals:
        try:
            with journal.open(encoding="utf-8") as stream:
                options = json.loads(stream.readline())["options"]
        except (ValueError, LookupError, TypeError) as error:
            raise InputError(f"{journal}: {DAMAGED}") from error
        if not options.get("trace"):
            return False
    return bool(journals)


def write_set_page(decoding: DecodedSet, baseline: DecodedSet | None, embed_audio: bool) -> Path:
    """Write the page of a test set, decoded with traces, into its folder; return the file."""
    results, entries, options = read_jobs(decoding.folder)
    has_other = baseline is not None and baseline is not decoding
    others = read_jobs(baseline.folder)[0] if has_other else {}
    alignments, shown = read_alignments(decoding), []
    for key in sorted(results):
        more = {"entry": entries.get(key), "alignment": alignments.get(key.lower())}
        if key in others:
            more["baseline"] = _shown(others[key])
        shown.append(_shown(results[key], **more))
    failed = read_results(decoding.folder / FAILED).items()
    shown += [Shown(key, "", DecodingStatistics(), error=reason) for key, reason in failed]
    path = decoding.folder / PAGE
    show(path, f"{decoding.name}, {decoding.test_set}", shown, options, embed_audio)
    return path


def read_jobs(folder: Path) -> tuple[dict[str, Decoded], dict[str, str], dict[str, Any]]:
    """Return the jobs' results with traces, wav.scp values, and decode options."""
    results, entries, options = {}, {}, {}
    for job in job_folders(folder / "logdir"):
        made_with, decoded = read_journal(job / JOURNAL)
        if made_with is None:
            raise InputError(f"{job / JOURNAL}: {DAMAGED}")
        results |= decoded
        options = made_with["options"]
        keys = folder / "logdir" / f"keys{job.suffix}.scp"
        entries |= read_table(keys) if keys.is_file() else {}
    return results, entries, options


def read_alignments(decoding: DecodedSet) -> dict[str, Alignment]:
    """Return sclite's alignments by utterance id in lower case; none if the set is not scored."""
    folder = decoding.folder / "score_wer"
    files = folder / "ref.trn", folder / "hyp.trn"
    if not all(path.is_file() for path in files):
        return {}
    report = decoding.result("wer")
    case_sensitive = report.is_file() and CASE_SENSITIVE in report.read_text(encoding="utf-8")
    keys, alignments = {key.lower() for key in decoding.texts}, {}
    score = score_trn(*files, case_sensitive=case_sensitive, allow_missing=True)
    for utterance in score.utterances:
        label = utterance.id.lower()
        alignments[next(utterance_ids(label, keys), label)] = [*utterance.pairs()]
    return alignments


def _shown(result: Decoded, **more: Any) -> Shown:
    """Return an utterance; ``more`` are the fields that the result does not have."""
    text, segments = " ".join((result.nbest[0].text or "").split()), result.segments or ()
    return Shown(result.key, text, result.statistics, result.trace, segments=segments, **more)
