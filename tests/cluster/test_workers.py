"""Workers: package versions, the choice of a GPU, and errors; the tasks that they get."""

from types import SimpleNamespace

from cases import cases
from experiment import write_noise
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_refused
from scripted_decoder import refuse

from espnet_medusa.cluster import connection
from espnet_medusa.cluster import decoder as decoder_module
from espnet_medusa.cluster import worker as worker_module
from espnet_medusa.cluster.connection import COMPARED, Workers, check_same_versions
from espnet_medusa.cluster.decoder import UNKNOWN_FRAMES, plan_tasks, read_lengths
from espnet_medusa.cluster.worker import WorkerDecoder, choose_gpu
from espnet_medusa.inference.batches import make_batches

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
    unknown = dict.fromkeys(("broken", "missing", "command"), UNKNOWN_FRAMES)
    known = {"half": 50, "other_rate": 200, "listed": 2000, "malformed": 50}
    assert read_lengths(entries, entries, tmp_path / "wav.scp") == known | unknown
    assert read_lengths([], entries, tmp_path / "wav.scp") == {}
    assert not ran.exists(), "the command must run once, on the worker"
