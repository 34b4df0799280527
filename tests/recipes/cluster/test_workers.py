"""Workers: versions, GPUs and tasks; two of them, some killed, write the files of one process."""

import functools
import gc
import json
import os
import re
import signal
from collections import Counter
from concurrent.futures import CancelledError
from contextlib import contextmanager
from types import SimpleNamespace

import dask
import pytest
from cases import cases
from experiment import read_lines, write_noise
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_refused, exit_status
from scripted_decoder import ScriptedDecoder, refuse

from espnet_medusa.bin import asr_inference, dask_inference
from espnet_medusa.data.command_line import SOME_FAILED
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import write_table
from espnet_medusa.inference.batches import make_batches
from espnet_medusa.inference.job import JobInput, decode_job, decode_remaining
from espnet_medusa.inference.journal import Journal
from espnet_medusa.recipes.cluster import connection
from espnet_medusa.recipes.cluster import decoder as decoder_module
from espnet_medusa.recipes.cluster import worker as worker_module
from espnet_medusa.recipes.cluster.connection import COMPARED, Workers, check_same_versions, connect
from espnet_medusa.recipes.cluster.decoder import (
    ClusterDecoder,
    cluster_decoder,
    plan_tasks,
    read_lengths,
)
from espnet_medusa.recipes.cluster.worker import WorkerDecoder, choose_gpu

HERE = dict.fromkeys(COMPARED, "1.2.3") | {"python": "3.11.7.final.0", "torch": "2.13.0+cpu"}


@cases(
    ({}, None),
    ({"python": "3.11.2.final.0"}, None),
    ({"torch": "2.13.0+cu128"}, None),
    ({"torch": "2.12.1+cpu"}, "b has torch 2.12.1, this machine has 2.13.0"),
    ({"python": "3.12.7.final.0"}, "b has python 3.12, this machine has 3.11"),
    ({"espnet_medusa": None}, "b has espnet_medusa not installed, this machine has 1.2.3"),
)
def test_a_different_version_is_one_line_but_another_build_is_equal(changes, message):
    machines = {"a": HERE, "b": HERE | changes}
    if message is None:
        check_same_versions(HERE, machines)
    else:
        assert_refused(f"^{message}", check_same_versions, HERE, machines)


def test_workers_that_join_are_compared_once(monkeypatch):
    queries, workers_there = [], {"tcp://a:1": HERE}

    def versions(packages):
        queries.append(set(workers_there))
        about = {address: {"packages": versions} for address, versions in workers_there.items()}
        return {"client": {"packages": HERE}, "scheduler": {"packages": HERE}, "workers": about}

    client = SimpleNamespace(get_versions=versions, scheduler=SimpleNamespace(address="tcp://s:1"))
    client.nthreads = lambda: dict.fromkeys(workers_there, 1)
    monkeypatch.setattr(connection, "COUNT_EVERY_S", 0.0)
    workers = Workers(client)
    assert workers.count() == workers.count() == 1 and queries == [{"tcp://a:1"}]
    workers_there["tcp://b:2"] = HERE | {"torch": "1.0"}
    assert_refused(r"worker tcp://b:2 has torch 1.0, this machine has 2.13", workers.count)
    workers_there.clear()
    assert workers.count() == 0 and len(queries) == 2
    del client.nthreads  # as of a client that has closed itself
    assert_refused("scheduler: tcp://s:1: the connection is lost", workers.count)


@cases(
    ("0", "4"), ("1", "5"), ("2", "7"), ("3", "4"),
    ("SLURMCluster-0", "4"), ("SLURMCluster-2-14", "7"),
    ("alice", "4"), ("tcp://10.0.0.7:38571", "4"),
)  # fmt: skip
def test_the_number_in_a_workers_name_chooses_its_gpu(name, gpu):
    assert choose_gpu(name, ["4", "5", "7"]) == gpu


def test_a_worker_sets_its_gpu_only_with_use_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    worker = SimpleNamespace(name=2)
    WorkerDecoder(refuse, ".").setup(worker)
    assert worker_module.os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,7"
    WorkerDecoder(refuse, ".", use_gpu=True).setup(worker)
    assert worker_module.os.environ["CUDA_VISIBLE_DEVICES"] == "7"


def test_a_missing_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(worker_module, "get_worker", lambda: SimpleNamespace(address="tcp://a:1"))
    missing = tmp_path / "missing"
    message = rf"^worker tcp://a:1: {missing}: missing; workers"
    assert_refused(message, WorkerDecoder(refuse, str(missing)).sample_rate_hz)


@given(
    lengths=st.lists(st.integers(0, 40000), max_size=60),
    batch_size=st.integers(1, 9),
    max_batch_frames=st.none() | st.integers(1, 30000),
    workers=st.integers(1, 40),
)
def test_tasks_are_runs_of_one_process_batches(lengths, batch_size, max_batch_frames, workers):
    by_key = {f"u{number}": length for number, length in enumerate(lengths)}
    tasks = plan_tasks(by_key, batch_size, max_batch_frames, workers)
    frames = [max(length, 1) for length in lengths]
    batches = make_batches(frames, batch_size, max_batch_frames)
    assert [key for task in tasks for key in task] == [f"u{i}" for batch in batches for i in batch]
    padded = {f"u{batch[0]}": len(batch) * frames[batch[0]] for batch in batches}
    parts = decoder_module.TASKS_PER_WORKER * workers
    most = min(decoder_module.TASK_FRAMES, -(-sum(padded.values()) // parts))
    for task in tasks:
        assert task[0] in padded, "a task must begin with a batch"
        sizes_of_task = [padded[key] for key in task if key in padded]
        assert sum(sizes_of_task) <= most or len(sizes_of_task) == 1
    for task, following in zip(tasks, tasks[1:], strict=False):
        size = sum(padded.get(key, 0) for key in task)
        assert size + padded[following[0]] > most, "the batch would have fit"


def test_lengths_come_from_the_table_or_the_header(tmp_path):
    write_noise(tmp_path / "half.wav", 0.5)
    write_noise(tmp_path / "other_rate.flac", 2.0, rate_hz=44100)
    (tmp_path / "broken.wav").write_bytes(b"RIFF and no more")
    ran = tmp_path / "ran"
    entries = {key: str(tmp_path / f"{key}.wav") for key in ("half", "broken", "missing")}
    entries |= dict.fromkeys(("listed", "malformed"), entries["half"])
    entries["other_rate"] = str(tmp_path / "other_rate.flac")
    entries["command"] = f"touch {ran}; cat {entries['half']} |"
    (tmp_path / "utt2num_samples").write_text("listed 320000\nmalformed many\nanother 1\n")
    unknown = dict.fromkeys(("broken", "missing", "command"), decoder_module.UNKNOWN_FRAMES)
    known = {"half": 50, "other_rate": 200, "listed": 2000, "malformed": 50}
    assert read_lengths(entries, entries, tmp_path / "wav.scp") == known | unknown
    assert read_lengths([], entries, tmp_path / "wav.scp") == {}
    assert not ran.exists(), "the command must run once, on the worker"


RESULTS = ("text", "token", "token_int", "score")


@pytest.fixture(scope="module")
def client():
    """Client of a cluster of two workers; a task fails once it has killed two."""
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), connect(None, 2) as client:
        yield client


def make_job(folder, keys, frames=None, **fields) -> JobInput:
    """A job of missing files; the default length makes each utterance a task."""
    samples = {key: str(160 * (frames or {}).get(key, 12000)) for key in keys}
    write_table(folder / "utt2num_samples", samples)
    fields = {"problems": {}} | fields
    return JobInput([*keys], {key: f"{key}.wav" for key in keys}, **fields)


@contextmanager
def scripted(client, folder):
    build = functools.partial(ScriptedDecoder, str(folder))
    with cluster_decoder(client, build, False, wav_scp=folder / "wav.scp") as decoder:
        yield decoder


def decode(client, folder, job, name: str = "out") -> int:
    with scripted(client, folder) as decoder:
        return decode_job(decoder, job, Journal(folder / name, {}))


def results(folder) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.name in (*RESULTS, "failed_utterances")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def recorded(folder) -> list[str]:
    lines = (folder / "journal.jsonl").read_text().splitlines()[1:]
    return [json.loads(line)["key"] for line in lines]


def decode_alone(folder, job, *harmless: str) -> None:
    """Write `folder/one`, the oracle: one process, one utterance after the other."""
    alone = folder / "alone"
    alone.mkdir()
    for key in harmless:
        (alone / key).touch()
    decode_job(ScriptedDecoder(str(alone)), job, Journal(folder / "one", {}))


def test_tasks_whose_worker_dies_run_again_and_count_once(client, tmp_path, caplog):
    keys = [f"u{number}" for number in range(12)]
    keys[3:3] = ["bad-a", "once-a", "unlisted"]
    keys += ["bad-b", "once-b"]
    fields = {"languages": {"u1": "de", "once-b": "fr"}}
    job = make_job(tmp_path, keys, **fields, problems={"unlisted": "wav.scp: unlisted: missing"})
    with caplog.at_level("INFO"):
        assert decode(client, tmp_path, job, "many") == 3
    begun = Counter(ScriptedDecoder(str(tmp_path)).begun())
    assert begun["once-a"] == begun["once-b"] == 2
    good = [key for key in keys if not key.startswith(("bad", "unlisted"))]
    assert sorted(recorded(tmp_path / "many")) == sorted(good)
    assert len(re.findall("failed: ", caplog.text)) == 3
    readable = JobInput([key for key in keys if key != "unlisted"], job.entries, {}, job.languages)
    decode_alone(tmp_path, readable, "once-a", "once-b")
    expected = results(tmp_path / "one")
    expected["failed_utterances"] = (
        b"bad-a bad-a.wav: bad-a: cursed\nunlisted wav.scp: unlisted: missing\n"
        b"bad-b bad-b.wav: bad-b: cursed\n"
    )
    assert results(tmp_path / "many") == expected


def test_only_the_utterance_that_kills_every_worker_fails(client, tmp_path):
    # At first all short ones are in one task.
    frames = dict.fromkeys(("a", "b", "deadly", "c", "d"), 10) | {"long": 12000}
    assert decode(client, tmp_path, make_job(tmp_path, frames, frames)) == 1
    failed = read_lines(tmp_path / "out" / "failed_utterances")
    assert [*failed] == ["deadly"]
    assert failed["deadly"].startswith("deadly.wav: 2 workers died one after the other")
    assert sorted(recorded(tmp_path / "out")) == ["a", "b", "c", "d", "long"]


def test_the_job_stops_when_all_tasks_kill_their_workers(client, tmp_path, monkeypatch):
    monkeypatch.setattr(decoder_module, "DEADLY_TASKS", 2)
    with pytest.raises(InputError, match="2 workers died .* in each of 2 tasks"):
        decode(client, tmp_path, make_job(tmp_path, ["deadly-a", "deadly-b"]))


def test_recorded_utterances_are_not_decoded_again(client, tmp_path):
    job = make_job(tmp_path, [f"u{number:02d}" for number in range(16)])
    with scripted(client, tmp_path) as decoder:
        journal = Journal(tmp_path / "many", {})
        outcomes = decode_remaining(decoder, job, journal)
        for _ in range(5):
            next(outcomes)
        outcomes.close()
        done = {*journal.decoded}
    assert len(done) == 5
    (tmp_path / "begun").unlink()
    assert decode(client, tmp_path, job, "many") == 0
    assert not done.intersection(ScriptedDecoder(str(tmp_path)).begun())
    assert sorted(recorded(tmp_path / "many")) == job.keys
    decode_alone(tmp_path, job)
    assert results(tmp_path / "many") == results(tmp_path / "one")


def test_an_error_of_opening_the_model_is_one_line(client, tmp_path):
    job = make_job(tmp_path, ["a"])
    with (
        cluster_decoder(client, refuse, False, wav_scp=tmp_path / "wav.scp") as decoder,
        pytest.raises(InputError, match=r"^worker tcp://127[\d.:]+: ngpu: 7; allowed: at most 1$"),
    ):
        decode_job(decoder, job, Journal(tmp_path / "out", {}))


def test_the_scheduler_has_a_limited_number_of_tasks(client, tmp_path, monkeypatch):
    job = make_job(tmp_path, [f"u{number}" for number in range(20)])
    gc.collect()  # futures of a failed test

    def pending() -> int:
        return sum(state.status == "pending" for state in [*client.futures.values()])

    most, submit, before = [], client.submit, pending()

    def counted(*arguments, **options):
        future = submit(*arguments, **options)
        most.append(pending() - before)
        return future

    monkeypatch.setattr(client, "submit", counted)
    assert decode(client, tmp_path, job) == 0
    assert len(most) == 1 + 20 and max(most) <= 1 + 2 * decoder_module.TASKS_AHEAD


@cases(
    (CancelledError(), "scheduler: tcp://a:1: the connection is lost; run the same command"),
    (InputError("worker tcp://b:1: no"), "worker tcp://b:1: no"),
    (ModuleNotFoundError("No module named 'x'"), "run its task: No module named 'x' (ModuleN"),
)
def test_errors_of_the_cluster_are_one_line(error, message, tmp_path, monkeypatch):
    checks = []
    client = SimpleNamespace(scheduler=SimpleNamespace(address="tcp://a:1"))
    workers = Workers(client)
    monkeypatch.setattr(workers, "check_versions", lambda: checks.append(True))
    decoder = ClusterDecoder(client, workers, "plugin", None, tmp_path / "wav.scp")
    assert_refused(re.escape(message), decoder._as_killed_worker, error)
    assert len(checks) == isinstance(error, ModuleNotFoundError), "versions are checked first"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, experiment):
    """Options of a tiny model, and ten utterances, one of which is no audio."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(10):
        write_noise(folder / f"{number}.wav", 0.3 + 0.04 * (number * 3 % 7), seed=number)
    (folder / "4.wav").write_bytes(b"no audio")
    # Relative paths as in recipes; the workers start in another folder.
    write_table(folder / "wav.scp", {f"u{number}": f"{number}.wav" for number in range(10)})
    command = [*experiment.options(), "--search", "greedy", "--maxlenratio", "-12"]
    return folder, [*command, "--data_path_and_name_and_type", "wav.scp,speech,sound"]


@pytest.fixture
def command(corpus, monkeypatch):
    monkeypatch.chdir(corpus[0])
    return corpus[1]


def test_the_command_writes_what_asr_inference_writes_though_workers_are_killed(
    client, command, tmp_path, monkeypatch, caplog
):
    add = Journal.add

    def add_and_kill(journal, decoded):
        add(journal, decoded)
        if journal.folder.name == "many" and len(journal.decoded) in (2, 5):
            pids = client.run(os.getpid, on_error="ignore")
            os.kill(next(iter(pids.values())), signal.SIGKILL)

    monkeypatch.setattr(Journal, "add", add_and_kill)
    one, many = tmp_path / "one", tmp_path / "many"
    there = ["--scheduler", client.scheduler.address, "--output_dir"]
    assert exit_status(asr_inference.main, *command, "--output_dir", one) == SOME_FAILED
    with caplog.at_level("INFO"):
        assert exit_status(dask_inference.main, *command, *there, many) == SOME_FAILED
    assert results(one) == results(many) and len(results(one)) == 5
    assert sum("best hypo: " in record.message for record in caplog.records) == 9
    assert len(recorded(many)) == 9
    # One command resumes from the journal of the other.
    lines = (one / "journal.jsonl").read_text().splitlines(keepends=True)
    (one / "journal.jsonl").write_text("".join(lines[:6]))
    caplog.clear()
    with caplog.at_level("INFO"):
        exit_status(dask_inference.main, *command, *there, one)
    assert "resumed: 5 of 10" in caplog.text and results(one) == results(many)


def test_a_missing_scheduler_is_one_line(command, tmp_path):
    for address in ("tcp://127.0.0.1:9", "nonesuch://host:1"):
        there = ["--scheduler", address, "--output_dir", tmp_path]
        with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
            message = exit_status(dask_inference.main, *command, *there)
        assert message.startswith(f"error: scheduler: {address}: cannot be reached (")
        assert "\n" not in message and "start `dask scheduler`" in message
