"""Tasks have each utterance once, in the batches of one process, and limited frames."""

from experiment import write_noise
from hypothesis import given
from hypothesis import strategies as st

from espnet_medusa.cluster.decoder import (
    TASK_FRAMES,
    TASKS_PER_WORKER,
    UNKNOWN_FRAMES,
    plan_tasks,
    read_lengths,
)
from espnet_medusa.inference.batches import make_batches


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
    starts, sizes = [], []
    for batch in batches:
        starts.append(f"u{batch[0]}")
        sizes.append(len(batch) * frames[batch[0]])
    most = min(TASK_FRAMES, -(-sum(sizes) // (TASKS_PER_WORKER * workers)))
    padded = dict(zip(starts, sizes, strict=True))
    for task in tasks:
        assert task[0] in padded, "a task must begin with a batch"
        sizes_of_task = [padded[key] for key in task if key in padded]
        assert sum(sizes_of_task) <= most or len(sizes_of_task) == 1
    for task, following in zip(tasks, tasks[1:], strict=False):
        size = sum(padded.get(key, 0) for key in task)
        assert size + padded[following[0]] > most, "the batch would have fit"


def test_few_utterances_are_divided_among_all_workers():
    tasks = plan_tasks({f"u{number}": 300 for number in range(20)}, 1, None, workers=4)
    assert len(tasks) >= 4 * TASKS_PER_WORKER


def test_tasks_of_hours_of_audio_have_the_most_frames():
    tasks = plan_tasks({f"u{number}": 1000 for number in range(100)} | {"hour": 360000}, 1, None, 2)
    assert tasks[0] == ["hour"]
    assert {len(task) for task in tasks[1:-1]} == {TASK_FRAMES // 1000}


def test_lengths_come_from_the_table_or_the_header(tmp_path):
    write_noise(tmp_path / "half.wav", 0.5)
    write_noise(tmp_path / "other_rate.flac", 2.0, rate_hz=44100)
    (tmp_path / "broken.wav").write_bytes(b"RIFF and no more")
    ran = tmp_path / "ran"
    entries = {
        "half": str(tmp_path / "half.wav"),
        "other_rate": str(tmp_path / "other_rate.flac"),
        "listed": str(tmp_path / "half.wav"),
        "malformed": str(tmp_path / "half.wav"),
        "broken": str(tmp_path / "broken.wav"),
        "missing": str(tmp_path / "missing.wav"),
        "command": f"touch {ran}; cat {tmp_path / 'half.wav'} |",
    }
    (tmp_path / "utt2num_samples").write_text("listed 320000\nmalformed many\nanother 1\n")
    unknown = dict.fromkeys(("broken", "missing", "command"), UNKNOWN_FRAMES)
    known = {"half": 50, "other_rate": 200, "listed": 2000, "malformed": 50}
    assert read_lengths(entries, entries, tmp_path / "wav.scp") == known | unknown
    assert read_lengths([], entries, tmp_path / "wav.scp") == {}
    assert not ran.exists(), "the command must run once, on the worker"
