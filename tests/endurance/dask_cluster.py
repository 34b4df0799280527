"""Decode on a Dask cluster: workers killed and added meanwhile, throughput, 100,000 utterances.

python tests/endurance/dask_cluster.py --model exp/asr_base --data_dir dump/raw/test \\
    --output dask_cluster.md

The utterances of a data directory are repeated under new names. One process decodes them, then a
local cluster while two of its workers are killed and one is added: all result files must be the
same, byte for byte. Exit status 1: they differ, or an utterance was recorded twice. Throughput is
measured with a tenth of the utterances, after the first tenth of them. The large job is simulated:
names, lengths and results as of speech, tasks that do nothing, a scheduler in its own process.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import torch
from distributed import Client

from espnet_medusa.bin import asr_inference
from espnet_medusa.bin.command_line import make_main, positive
from espnet_medusa.cluster import decoder as cluster
from espnet_medusa.cluster.connection import call_plugin, connect
from espnet_medusa.cluster.decoder import SAMPLES, cluster_decoder
from espnet_medusa.errors import InputError
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.inference.job import JobDecoder, JobInput, decode_job
from espnet_medusa.inference.journal import JOURNAL, Decoded, Journal, NBestEntry, Outcome
from espnet_medusa.kaldi.table import read_table, write_table
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.tuning.report import machine_name

SETTLED = 0.1  # share of the utterances before throughput counts
RESULTS = (*(f"1best_recog/{name}" for name in ("text", "token", "token_int", "score")),
           "failed_utterances")  # fmt: skip
WAV_SCP = "wav.scp"
RATE_HZ, MEGABYTE, KILOBYTE = 16000, 1e6, 1e3
SHORTEST_S, LONGEST_S = 2.0, 30.0  # of simulated utterances
WORDS = ["speech"] * 30
THROUGHPUT_WORKERS = (1, 2, 4)
Rows = list[list[str]]
Acts = dict[int, Callable[[], object]]  # functions to call after this many outcomes


@dataclass
class Watched:
    """A decoder whose outcomes are counted and timed as they come."""

    decoder: JobDecoder  # the one that decodes
    acts: Acts = field(default_factory=dict)
    times: list[float] = field(default_factory=list)  # when each came, in seconds

    @property
    def sample_rate_hz(self) -> int:
        return self.decoder.sample_rate_hz

    def decode(self, job: JobInput) -> Iterator[Outcome]:
        for outcome in self.decoder.decode(job):
            self.times.append(time.monotonic())
            self.acts.get(len(self.times), lambda: None)()
            yield outcome

    def throughput(self) -> float:
        """Return utterances per second after the first tenth."""
        first = int(SETTLED * len(self.times))
        return (len(self.times) - 1 - first) / (self.times[-1] - self.times[first])


@dataclass(frozen=True)
class SimulatedDecoder:
    """Returns results of the usual size at once."""

    sample_rate_hz: int = RATE_HZ

    def decode(self, job: JobInput) -> Iterator[Outcome]:
        for key in job.keys:
            tokens = [*range(10000, 10000 + len(WORDS))]
            nbest = [NBestEntry(" ".join(WORDS), WORDS, tokens, "tensor(-4.2121)")]
            drafts = {"drafted": [11] * 8, "accepted": [*range(10, 2, -1)]}
            seconds = {"decoder_seconds": 0.25, "total_seconds": 0.5, "audio_seconds": 12.0}
            yield Decoded(key, nbest, DecodingStatistics(12, 60, 31, **drafts, **seconds))


def repeat_utterances(data_dir: Path, count: int, folder: Path) -> Path:
    """Write a wav.scp of this many utterances, and utt2num_samples if the directory has it."""
    for path in (data_dir / WAV_SCP, data_dir / SAMPLES):
        if path.is_file():
            rows = [*read_table(path).items()]
            turns = (divmod(number, len(rows)) for number in range(count))
            table = {f"{rows[row][0]}-{turn:06d}": rows[row][1] for turn, row in turns}
            write_table(folder / path.name, table)
    return folder / WAV_SCP


def read_options(model: Path, wav_scp: Path) -> dict:
    """Return options of asr_inference, for the whole of a wav.scp."""
    files = ["--asr_train_config", model / "config.yaml"]
    files += ["--asr_model_file", find_weights(model, "model")]
    data = ["--data_path_and_name_and_type", f"{wav_scp},speech,sound"]
    words = [*files, *data, "--output_dir", "", "--search", "greedy", "--ctc_weight", "0"]
    return vars(asr_inference.get_parser().parse_args([*map(str, words)]))


def decode_by_cluster(
    options: dict, folder: Path, workers: int, acts: Callable[[Client], Acts] = lambda _: {}
) -> Watched:
    """Decode by workers of this machine; ``acts`` gets the client before decoding starts."""
    job = asr_inference.read_job(options)
    wav_scp = Path(options["data_path_and_name_and_type"][0][0])
    opened = partial(asr_inference.open_decoder, options)
    with (
        connect(None, workers) as client,
        cluster_decoder(client, opened, False, wav_scp=wav_scp) as decoder,
    ):
        watched = Watched(decoder, acts(client))
        decode_job(watched, job, Journal(folder, {}))
    return watched


def differing_files(one: Path, other: Path) -> list[str]:
    return [name for name in RESULTS if (one / name).read_bytes() != (other / name).read_bytes()]


def journal_lines(folder: Path) -> int:
    """Return the number of recorded utterances; repeated ones count again."""
    return len((folder / JOURNAL).read_text(encoding="utf-8").splitlines()) - 1


def sabotaged_run(args: argparse.Namespace, folder: Path) -> tuple[Rows, bool]:
    options = read_options(args.model, repeat_utterances(args.data_dir, args.utterances, folder))
    decoder = asr_inference.open_decoder(options)
    decode_job(decoder, asr_inference.read_job(options), Journal(folder / "one", {}))
    killed = set()

    def acts(client: Client) -> Acts:
        def kill() -> None:
            pid = next(iter(client.run(os.getpid, on_error="ignore").values()))
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)

        def add() -> None:
            client.cluster.scale(len(client.cluster.workers) + 1)

        quarter = args.utterances // 4
        return {quarter: kill, 2 * quarter: add, 3 * quarter: kill}

    decode_by_cluster(options, folder / "many", args.workers, acts)
    differing = differing_files(folder / "one", folder / "many")
    recorded = journal_lines(folder / "many")
    rows = [
        ["utterances", str(args.utterances)],
        ["workers, of them killed, added", f"{args.workers}, {len(killed)}, 1"],
        ["utterances recorded", str(recorded)],
        ["files of results that differ from one process's", ", ".join(differing) or "none"],
    ]
    return rows, not differing and recorded == args.utterances


def throughput_rows(args: argparse.Namespace, folder: Path) -> Rows:
    wav_scp = repeat_utterances(args.data_dir, args.utterances // 10, folder)
    options = read_options(args.model, wav_scp)
    runs = {n: decode_by_cluster(options, folder / str(n), n) for n in THROUGHPUT_WORKERS}
    return [[str(workers), f"{watched.throughput():.1f}"] for workers, watched in runs.items()]


@contextmanager
def own_scheduler(folder: Path, workers: int) -> Iterator[tuple[str, psutil.Process]]:
    """Start a scheduler and workers as processes; yield the scheduler's address and process."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scheduler.json"
    paths = [str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def start(*words: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "dask", *words, "--scheduler-file", str(file)]
        command.append("--no-dashboard")
        null = subprocess.DEVNULL
        return subprocess.Popen(command, stdout=null, stderr=null, env=environment)

    processes = [start("scheduler", "--host", "127.0.0.1", "--port", "0")]
    try:
        while not (file.is_file() and file.stat().st_size):
            time.sleep(0.1)
        worker = ("worker", "--nthreads", "1", "--no-nanny", "--local-directory", str(folder))
        processes += [start(*worker) for _ in range(workers)]
        with Client(scheduler_file=str(file)) as client:
            if workers:
                client.wait_for_workers(workers)
            yield client.scheduler.address, psutil.Process(processes[0].pid)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def simulated_job(count: int, folder: Path) -> tuple[JobInput, float]:
    """Return a job without audio, whose lengths are in utt2num_samples; and its hours."""
    rng = random.Random(0)
    names = [f"speaker{number % 997:04d}-{number:08d}" for number in range(count)]
    seconds = {key: rng.uniform(SHORTEST_S, LONGEST_S) for key in names}
    samples = {key: str(round(RATE_HZ * value)) for key, value in seconds.items()}
    write_table(folder / SAMPLES, samples)
    entries = {key: f"/data/corpora/speech/wav/{key}.flac" for key in names}
    return JobInput(names, entries, {}), sum(seconds.values()) / 3600


def scheduler_growth(job: JobInput, tasks: list[list[str]], folder: Path) -> int:
    """Return the bytes by which a scheduler without workers grows if it gets all tasks at once."""
    with own_scheduler(folder, 0) as (address, process), Client(address) as client:
        before = process.memory_info().rss
        # The futures keep the tasks on the scheduler.
        futures = [
            client.submit(call_plugin, "", "decode", *cluster.task_arguments(job, task), pure=False)
            for task in tasks
        ]
        # A lambda is sent whole: the scheduler imports neither this file nor torch.
        while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) < len(
            futures
        ):
            time.sleep(0.1)
        return process.memory_info().rss - before


def simulation_rows(count: int, workers: int, folder: Path) -> Rows:
    """Decode a simulated job; return memory and times of the scheduler and of this process."""
    job, hours = simulated_job(count, folder)
    lengths = cluster.read_lengths(job.keys, job.entries, folder / WAV_SCP)
    tasks = cluster.plan_tasks(lengths, 1, None, workers)
    own = psutil.Process()
    before = own.memory_info().rss
    with (
        own_scheduler(folder, workers) as (address, process),
        connect(address, workers) as client,
        cluster_decoder(client, SimulatedDecoder, False, wav_scp=folder / WAV_SCP) as decoder,
    ):
        memory = [process.memory_info().rss]
        cpu_s = [sum(p.cpu_times()[:2]) for p in (process, own)]
        every = max(count // 100, 1)
        at = range(every, count + 1, every)
        acts = dict.fromkeys(at, lambda: memory.append(process.memory_info().rss))
        watched = Watched(decoder, acts)
        failed = decode_job(watched, job, Journal(folder / "results", {}))
        if failed or journal_lines(folder / "results") != count:
            raise InputError(f"simulated: {failed} of {count} utterances failed")
        cpu_s = [sum(p.cpu_times()[:2]) - s for p, s in zip((process, own), cpu_s, strict=True)]
    grown = own.memory_info().rss - before
    at_once = scheduler_growth(job, tasks, folder / "at_once")
    seconds = (*cpu_s, watched.times[-1] - watched.times[0])
    scheduler_ms, own_ms, all_ms = (f"{1e3 * value / len(tasks):.1f}" for value in seconds)
    return [
        ["utterances, hours of audio", f"{count}, {hours:.0f}"],
        ["tasks, workers", f"{len(tasks)}, {workers}"],
        ["scheduler at first [MB]", f"{memory[0] / MEGABYTE:.0f}"],
        ["scheduler grew by at most [MB]", f"{(max(memory) - memory[0]) / MEGABYTE:.1f}"],
        ["it would have, with all tasks at once [MB]", f"{at_once / MEGABYTE:.1f}"],
        ["that is, a task [kB]", f"{at_once / len(tasks) / KILOBYTE:.1f}"],
        ["the process that writes results grew by [MB]", f"{grown / MEGABYTE:.0f}"],
        ["processor time of the scheduler, a task [ms]", scheduler_ms],
        ["of the process that writes results, a task [ms]", own_ms],
        ["all of it took, a task [ms]", all_ms],
    ]


def report(sabotage: Rows, throughput: Rows, simulation: Rows) -> str:
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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="an experiment")
    parser.add_argument("--data_dir", type=Path, required=True, help="wav.scp of utterances")
    parser.add_argument("--utterances", type=positive, default=2000)
    parser.add_argument("--workers", type=positive, default=4)
    parser.add_argument("--simulated", type=positive, default=100000, help="utterances, no audio")
    parser.add_argument("--output", type=Path, required=True, help="page to write (.md)")


def work(args: argparse.Namespace) -> int:
    torch.set_num_threads(1)  # as in workers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulation = simulation_rows(args.simulated, args.workers, folder / "simulation")
        sabotage, same = sabotaged_run(args, folder / "sabotage")
        throughput = throughput_rows(args, folder / "throughput")
    text = report(sabotage, throughput, simulation)
    args.output.write_text(text, encoding="utf-8")
    print(text)
    return int(not same)


main = make_main("dask_cluster", __doc__, add_options, work)


if __name__ == "__main__":
    main()
