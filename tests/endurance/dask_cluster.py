"""Decoding on a Dask cluster: workers killed and added meanwhile, throughput, 100,000 utterances.

python tests/endurance/dask_cluster.py --model exp/asr_base --data_dir dump/raw/test \\
    --output dask_cluster.md

The utterances of a data directory are repeated under new names. One process decodes them, then a
local cluster of which workers are killed, and to which one is added, while it runs: all files of
results must be the same, byte for byte. Exit status 1: they are not, or an utterance was recorded
twice. Throughput is from a tenth of the utterances on. The large job is a pretended one: names,
lengths and results as of speech, tasks that do nothing, a scheduler in a process of its own.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import torch
from distributed import Client

from espnet_medusa.bin import asr_inference
from espnet_medusa.bin.command_line import make_main, positive
from espnet_medusa.cluster.connection import call_plugin, connect
from espnet_medusa.cluster.decoder import (
    SAMPLES,
    cluster_decoder,
    plan_tasks,
    read_lengths,
    task_arguments,
)
from espnet_medusa.errors import InputError
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.inference.job import JobDecoder, JobInput, decode_job
from espnet_medusa.inference.journal import JOURNAL, Decoded, Journal, NBestEntry, Outcome
from espnet_medusa.kaldi.table import read_table, write_table
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.tuning.report import machine_name

SETTLED = 0.1  # share of the utterances behind which throughput counts
COMPARED = ("text", "token", "token_int", "score")
WAV_SCP = "wav.scp"
RATE_HZ, MEGABYTE, KILOBYTE = 16000, 1e6, 1e3
SHORTEST_S, LONGEST_S = 2.0, 30.0  # of pretended utterances
WORDS = ["speech"] * 30
Rows = list[list[str]]


@dataclass
class Watched:
    """A decoder whose outcomes are counted and timed as they come."""

    decoder: JobDecoder  # the one that decodes
    # What is done once so many outcomes are there.
    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)  # when each came, in seconds

    @property
    def sample_rate_hz(self) -> int:
        return self.decoder.sample_rate_hz

    def decode(self, job: JobInput) -> Iterator[Outcome]:
        for outcome in self.decoder.decode(job):
            self.times.append(time.monotonic())
            self.at.get(len(self.times), lambda: None)()
            yield outcome

    def throughput(self) -> float:
        """Utterances a second, once it has settled."""
        first = int(SETTLED * len(self.times))
        return (len(self.times) - 1 - first) / (self.times[-1] - self.times[first])


@dataclass
class Saboteur:
    """Kills workers of a local cluster and adds one."""

    client: Client  # of the cluster
    killed: list[int] = field(default_factory=list)  # process ids

    def kill(self) -> None:
        """End a worker that runs, without a warning."""
        self.killed.append(next(iter(self.client.run(os.getpid, on_error="ignore").values())))
        os.kill(self.killed[-1], signal.SIGKILL)

    def add(self) -> None:
        """One worker more."""
        self.client.cluster.scale(len(self.client.cluster.workers) + 1)


@dataclass(frozen=True)
class PretendedDecoder:
    """Results of the size of real ones, at once."""

    sample_rate_hz: int = RATE_HZ

    def decode(self, job: JobInput) -> Iterator[Outcome]:
        for key in job.keys:
            tokens = [*range(10000, 10000 + len(WORDS))]
            nbest = [NBestEntry(" ".join(WORDS), WORDS, tokens, "tensor(-4.2121)")]
            drafts = {"drafted": [11] * 8, "accepted": [*range(10, 2, -1)]}
            seconds = {"decoder_seconds": 0.25, "total_seconds": 0.5, "audio_seconds": 12.0}
            yield Decoded(key, nbest, DecodingStatistics(12, 60, 31, **drafts, **seconds))


def repeat_utterances(data_dir: Path, count: int, folder: Path) -> Path:
    """A wav.scp of so many utterances, and utt2num_samples where there is one."""
    for name in (WAV_SCP, SAMPLES):
        if not (data_dir / name).is_file():
            continue
        rows = [*read_table(data_dir / name).items()]
        table = {}
        for number in range(count):
            key, value = rows[number % len(rows)]
            table[f"{key}-{number // len(rows):06d}"] = value
        write_table(folder / name, table)
    return folder / WAV_SCP


def read_options(args: argparse.Namespace, wav_scp: Path) -> dict:
    """Options of asr_inference, for the whole of a wav.scp."""
    files = ["--asr_train_config", args.model / "config.yaml"]
    files += ["--asr_model_file", find_weights(args.model, "model")]
    data = ["--data_path_and_name_and_type", f"{wav_scp},speech,sound"]
    words = [*files, *data, "--output_dir", "", "--search", "greedy", "--ctc_weight", "0"]
    return vars(asr_inference.get_parser().parse_args([*map(str, words)]))


def decode_here(options: dict, folder: Path) -> None:
    """Decode in this process."""
    decoder = asr_inference.open_decoder(options)
    decode_job(decoder, asr_inference.read_job(options), Journal(folder, {}))


def decode_there(
    options: dict, folder: Path, workers: int, sabotage: Callable[[Client, Watched], None]
) -> Watched:
    """Decode by workers of this machine.

    Args:
        sabotage: Gets the client and what is watched before it starts.
    """
    job = asr_inference.read_job(options)
    wav_scp = Path(options["data_path_and_name_and_type"][0][0])
    opened = partial(asr_inference.open_decoder, options)
    with (
        connect(None, workers) as client,
        cluster_decoder(client, opened, False, wav_scp=wav_scp) as decoder,
    ):
        watched = Watched(decoder)
        sabotage(client, watched)
        decode_job(watched, job, Journal(folder, {}))
    return watched


def differing_files(one: Path, other: Path) -> list[str]:
    """Files of results that are not the same."""
    names = [*(f"1best_recog/{name}" for name in COMPARED), "failed_utterances"]
    return [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]


def journal_lines(folder: Path) -> int:
    """Utterances that were recorded, each as often as it was."""
    return len((folder / JOURNAL).read_text(encoding="utf-8").splitlines()) - 1


def sabotaged_run(args: argparse.Namespace, folder: Path) -> tuple[Rows, bool]:
    """Rows of the table, and whether results are those of one process."""
    options = read_options(args, repeat_utterances(args.data_dir, args.utterances, folder))
    decode_here(options, folder / "one")
    saboteurs = []

    def sabotage(client: Client, watched: Watched) -> None:
        saboteur = Saboteur(client)
        saboteurs.append(saboteur)
        acts = (saboteur.kill, saboteur.add, saboteur.kill)
        for part, act in enumerate(acts, start=1):
            watched.at[part * args.utterances // (len(acts) + 1)] = act

    decode_there(options, folder / "many", args.workers, sabotage)
    differing = differing_files(folder / "one", folder / "many")
    recorded = journal_lines(folder / "many")
    rows = [
        ["utterances", str(args.utterances)],
        ["workers, of them killed, added", f"{args.workers}, {len(set(saboteurs[0].killed))}, 1"],
        ["utterances recorded", str(recorded)],
        ["files of results that differ from one process's", ", ".join(differing) or "none"],
    ]
    return rows, not differing and recorded == args.utterances


def throughput_rows(args: argparse.Namespace, folder: Path) -> Rows:
    """Utterances a second of clusters of several sizes."""
    wav_scp = repeat_utterances(args.data_dir, args.throughput_utterances, folder)
    options = read_options(args, wav_scp)
    rows = []
    for workers in args.throughput_workers:
        watched = decode_there(options, folder / str(workers), workers, lambda *_: None)
        rows.append([str(workers), f"{watched.throughput():.1f}"])
    return rows


@contextmanager
def own_scheduler(folder: Path, workers: int) -> Iterator[tuple[str, psutil.Process]]:
    """A scheduler's address and process; its workers are processes, too."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    paths = [str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    run = partial(
        subprocess.Popen,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    at = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    processes = [run([*dask, "scheduler", *at, "--scheduler-file", str(file)])]
    try:
        while not (file.is_file() and file.stat().st_size):
            time.sleep(0.1)
        one = [*dask, "worker", "--scheduler-file", str(file), "--nthreads", "1"]
        one += ["--no-nanny", "--no-dashboard", "--local-directory", str(folder)]
        processes += [run(one) for _ in range(workers)]
        with Client(scheduler_file=str(file)) as client:
            if workers:
                client.wait_for_workers(workers)
            yield client.scheduler.address, psutil.Process(processes[0].pid)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def pretended_job(count: int, folder: Path) -> tuple[JobInput, float]:
    """A job without audio, its lengths in utt2num_samples; and its hours."""
    lengths = random.Random(0)
    seconds = {
        f"speaker{number % 997:04d}-{number:08d}": lengths.uniform(SHORTEST_S, LONGEST_S)
        for number in range(count)
    }
    samples = {key: str(round(RATE_HZ * value)) for key, value in seconds.items()}
    write_table(folder / SAMPLES, samples)
    entries = {key: f"/data/corpora/speech/wav/{key}.flac" for key in seconds}
    return JobInput([*entries], entries, {}), sum(seconds.values()) / 3600


@dataclass(frozen=True)
class Simulated:
    """What a job of tasks that do nothing took."""

    seconds: float  # from the first result on
    scheduler_cpu_s: float  # of the scheduler's processor time
    own_cpu_s: float  # of this process's
    scheduler_bytes: list[int]  # memory of the scheduler: before it, and at each hundredth


def simulated_run(job: JobInput, workers: int, folder: Path) -> Simulated:
    """Decode a pretended job."""
    count, own = len(job.keys), psutil.Process()
    with (
        own_scheduler(folder, workers) as (address, process),
        connect(address, workers) as client,
        cluster_decoder(client, PretendedDecoder, False, wav_scp=folder / WAV_SCP) as decoder,
    ):
        memory = [process.memory_info().rss]
        cpu = [sum(one.cpu_times()[:2]) for one in (process, own)]
        every = max(count // 100, 1)
        at = range(every, count + 1, every)
        watched = Watched(
            decoder, dict.fromkeys(at, lambda: memory.append(process.memory_info().rss))
        )
        failed = decode_job(watched, job, Journal(folder / "results", {}))
        if failed or journal_lines(folder / "results") != count:
            raise InputError(f"simulated: {failed} of {count} utterances failed")
        cpu = [sum(one.cpu_times()[:2]) - s for one, s in zip((process, own), cpu, strict=True)]
        return Simulated(watched.times[-1] - watched.times[0], *cpu, memory)


def scheduler_growth(job: JobInput, tasks: Sequence[list[str]], folder: Path) -> int:
    """Bytes by which a scheduler grows that gets all tasks at once, without workers."""
    with own_scheduler(folder, 0) as (address, process), Client(address) as client:
        before = process.memory_info().rss
        futures = [
            client.submit(call_plugin, "", "decode", *task_arguments(job, task), pure=False)
            for task in tasks
        ]
        # A lambda travels whole: the scheduler has no need of this file, nor of torch.
        while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) < len(
            futures
        ):
            time.sleep(0.1)
        return process.memory_info().rss - before


def simulation_rows(count: int, workers: int, folder: Path) -> Rows:
    """What tasks cost that do nothing."""
    job, hours = pretended_job(count, folder)
    lengths = read_lengths(job.keys, job.entries, folder / WAV_SCP)
    tasks = plan_tasks(lengths, 1, None, workers)
    own = psutil.Process()
    before = own.memory_info().rss
    run = simulated_run(job, workers, folder)
    kept = own.memory_info().rss - before
    at_once = scheduler_growth(job, tasks, folder / "at_once")
    ms_a_task = 1e3 / len(tasks)
    first, grown = run.scheduler_bytes[0], max(run.scheduler_bytes) - run.scheduler_bytes[0]
    return [
        ["utterances, hours of audio", f"{count}, {hours:.0f}"],
        ["tasks, workers", f"{len(tasks)}, {workers}"],
        ["scheduler at first [MB]", f"{first / MEGABYTE:.0f}"],
        ["scheduler grew by at most [MB]", f"{grown / MEGABYTE:.1f}"],
        ["it would have, with all tasks at once [MB]", f"{at_once / MEGABYTE:.1f}"],
        ["that is, a task [kB]", f"{at_once / len(tasks) / KILOBYTE:.1f}"],
        ["the process that writes results grew by [MB]", f"{kept / MEGABYTE:.0f}"],
        ["processor time of the scheduler, a task [ms]", f"{run.scheduler_cpu_s * ms_a_task:.1f}"],
        ["of the process that writes results, a task [ms]", f"{run.own_cpu_s * ms_a_task:.1f}"],
        ["all of it took, a task [ms]", f"{run.seconds * ms_a_task:.1f}"],
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's options."""
    parser.add_argument("--model", type=Path, required=True, help="an experiment")
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp of utterances")
    parser.add_argument("--utterances", type=positive, default=2000)
    parser.add_argument("--workers", type=positive, default=4)
    parser.add_argument("--throughput_workers", type=positive, nargs="+", default=[1, 2, 4])
    parser.add_argument("--throughput_utterances", type=positive, default=200)
    parser.add_argument("--simulated", type=positive, default=100000, help="utterances, no audio")
    parser.add_argument("--output", type=Path, required=True, help="table to write (.md)")


def report(sabotage: Rows, throughput: Rows, simulation: Rows) -> str:
    """The page of three tables."""
    cores, load = os.cpu_count(), os.getloadavg()[2]
    return (
        f"# Decoding on a Dask cluster\n\n{machine_name(torch.device('cpu'))}, {cores} cores; one "
        "thread a worker. Load average of 15 minutes, this and all other work together: "
        f"{load:.1f}.\n\n"
        "## Workers killed and added\n\n"
        f"{markdown_table(['counted', 'figure'], sabotage, text_columns=1)}\n"
        f"## Throughput\n\nWorkers beyond the {cores} cores share them. Where other work fills the "
        "machine, more workers get a larger share of it.\n\n"
        f"{markdown_table(['workers', 'utterances/s'], throughput, text_columns=0)}\n"
        "## Tasks that do nothing\n\n"
        f"{markdown_table(['measured', 'figure'], simulation, text_columns=1)}"
    )


def work(args: argparse.Namespace) -> int:
    """Measure and write; the exit status."""
    torch.set_num_threads(1)  # as workers have it
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {part: folder / part for part in ("sabotage", "throughput", "simulation")}
        simulation = simulation_rows(args.simulated, args.workers, parts["simulation"])
        sabotage, same = sabotaged_run(args, parts["sabotage"])
        throughput = throughput_rows(args, parts["throughput"])
    text = report(sabotage, throughput, simulation)
    args.output.write_text(text, encoding="utf-8")
    print(text)
    return int(not same)


main = make_main("dask_cluster", __doc__, add_options, work)


if __name__ == "__main__":
    main()
