"""Synthesize a small corpus with espeak-ng: Kaldi data directories and audio.

Writes ``<output_dir>/{train,dev,test}<suffix>`` with wav.scp, text, utt2spk and spk2utt, and
16 kHz FLAC files in folders of the same names in ``<audio_dir>``. The paths in wav.scp start with
``--audio_dir`` as given; by default they are relative to the recipe's folder.
"""

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path

from corpus_plan import CorpusOptions, Utterance, plan_utterances
from render import audio_path, render_files_in_new_process
from sentences import Language, load_language
from tqdm import tqdm

from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.kaldi.data_dir import make_spk2utt
from espnet_medusa.data.kaldi.table import read_table, write_table

# Utterances per process. The samples depend on it.
BATCH_SIZE = 100
TABLES = ("wav.scp", "text", "utt2spk", "spk2utt")
# Estimate for dev and test, for the progress bar.
TYPICAL_DURATION_S = 4.0


def fingerprint(options: CorpusOptions) -> str:
    """Return a hash of all that defines the files: options, this folder's modules and lists."""
    digest = hashlib.sha256(json.dumps(asdict(options), sort_keys=True).encode())
    here = Path(__file__).resolve().parent
    for path in [*sorted(here.glob("*.py")), here / "languages" / f"{options.language}.yaml"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_complete(directories: Iterable[Path], marker: Path, expected: str) -> bool:
    """Return whether an earlier run with the same options is complete and its files exist."""
    if not marker.is_file() or marker.read_text(encoding="utf-8") != expected:
        return False
    try:
        for directory in directories:
            tables = {name: read_table(directory / name) for name in TABLES}
            if not all(Path(path).is_file() for path in tables["wav.scp"].values()):
                return False
    except ValueError:  # a table is missing or broken
        return False
    return True


def speak_all(
    utterances: list[Utterance], audio_dir: Path, seed: int, nj: int, progress: tqdm
) -> list[float]:
    """Synthesize utterances with ``nj`` processes; returns durations in seconds, in order."""
    batches = [utterances[i : i + BATCH_SIZE] for i in range(0, len(utterances), BATCH_SIZE)]
    durations_s: list[float] = []
    with ThreadPoolExecutor(nj) as threads:
        for batch in threads.map(
            lambda batch: render_files_in_new_process(batch, audio_dir, seed), batches
        ):
            durations_s += batch
            progress.update(round(sum(batch)))
    return durations_s


def speak_corpus(
    language: Language, options: CorpusOptions, audio_dir: Path, nj: int
) -> tuple[list[Utterance], list[float]]:
    """Plan and synthesize the corpus; the training set ends when it has its minutes.

    Returns:
        Utterances of all sets and their durations in seconds.
    """
    plan = plan_utterances(language, options)
    n_held_out = options.dev_utterances + options.test_utterances
    train_s = options.minutes * 60
    with tqdm(
        desc="synthesizing",
        total=round(train_s + n_held_out * TYPICAL_DURATION_S),
        unit="s of speech",
        mininterval=0.2 if sys.stderr.isatty() else 10,
    ) as progress:
        utterances = list(islice(plan, n_held_out))
        durations_s = speak_all(utterances, audio_dir, options.seed, nj, progress)
        missing_s = train_s
        while missing_s > 0:
            mean_s = sum(durations_s) / len(durations_s)
            more = list(islice(plan, math.ceil(missing_s / mean_s)))
            for utterance, duration_s in zip(
                more, speak_all(more, audio_dir, options.seed, nj, progress), strict=True
            ):
                if missing_s <= 0:
                    audio_path(audio_dir, utterance).unlink()
                    continue
                utterances.append(utterance)
                durations_s.append(duration_s)
                missing_s -= duration_s
    return utterances, durations_s


def write_data_dir(directory: Path, utterances: Collection[Utterance], audio_dir: Path) -> None:
    """Write wav.scp, text, utt2spk and spk2utt."""
    utt2spk = {u.utterance_id: u.speaker for u in utterances}
    paths = {u.utterance_id: str(audio_path(audio_dir, u)) for u in utterances}
    write_table(directory / "wav.scp", paths)
    write_table(directory / "text", {u.utterance_id: u.text for u in utterances})
    write_table(directory / "utt2spk", utt2spk)
    write_table(directory / "spk2utt", make_spk2utt(utt2spk))


def make_corpus(options: CorpusOptions, output_dir: Path, audio_dir: Path, nj: int) -> None:
    """Make the corpus, unless it is complete."""
    language = load_language(options.language)
    marker = output_dir / f".mini_synth{options.suffix}"
    wanted = f"{fingerprint(options)} {audio_dir}\n"
    if is_complete((output_dir / name for name in options.set_names), marker, wanted):
        print(f"{output_dir}: complete already, nothing to do")
        return
    start = time.monotonic()
    # First, so that an interrupted run does not look complete.
    marker.unlink(missing_ok=True)
    for name in options.set_names:
        folder = audio_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.flac"):
            path.unlink()
    utterances, durations_s = speak_corpus(language, options, audio_dir, nj)
    for name in options.set_names:
        spoken = zip(utterances, durations_s, strict=True)
        members = {u: duration_s for u, duration_s in spoken if u.set_name == name}
        write_data_dir(output_dir / name, members, audio_dir)
        minutes = sum(members.values()) / 60
        n_voices = len({u.voice for u in members})
        print(f"{name}: {len(members)} utterances, {minutes:.1f} min, {n_voices} voices")
    write_atomically(marker, wanted)
    print(f"{output_dir}: done in {time.monotonic() - start:.0f} s")


def positive_int(text: str) -> int:
    """Parse --nj."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be 1 or more")
    return value


def get_parser() -> argparse.ArgumentParser:
    """Build the parser: the fields of CorpusOptions, folders and processes."""
    parser = argparse.ArgumentParser(
        description="Synthesize a small corpus with espeak-ng: Kaldi data directories.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for option in fields(CorpusOptions):
        parser.add_argument(
            f"--{option.name}",
            type=option.type,
            default=option.default,
            help=option.metadata["help"],
        )
    parser.add_argument("--output_dir", type=Path, default=Path("data"), help="data directories")
    parser.add_argument(
        "--audio_dir", type=Path, default=Path("downloads/mini_synth"), help="FLAC files"
    )
    parser.add_argument("--nj", type=positive_int, default=2, help="processes")
    return parser


def main(cmd: list[str] | None = None) -> None:
    """Run the command line ``cmd`` (default: this process's)."""
    parser = get_parser()
    arguments = vars(parser.parse_args(cmd))
    names = [option.name for option in fields(CorpusOptions)]
    try:
        options = CorpusOptions(**{name: arguments.pop(name) for name in names})
        make_corpus(options, **arguments)
    except (ValueError, RuntimeError, OSError) as error:
        parser.exit(1, f"{parser.prog}: error: {error}\n")


if __name__ == "__main__":
    main()
