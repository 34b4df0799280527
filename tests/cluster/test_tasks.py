"""Tasks: each utterance once, in the batches of one process, bounded by frames."""

from hypothesis import given
from hypothesis import strategies as st

from espnet_medusa.cluster.tasks import TASK_FRAMES, TASKS_A_WORKER, plan_tasks
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
    most = min(TASK_FRAMES, -(-sum(sizes) // (TASKS_A_WORKER * workers)))
    padded = dict(zip(starts, sizes, strict=True))
    for task in tasks:
        assert task[0] in padded, "a task begins with a batch"
        of_task = [padded[key] for key in task if key in padded]
        assert sum(of_task) <= most or len(of_task) == 1
    for task, following in zip(tasks, tasks[1:], strict=False):
        size = sum(padded.get(key, 0) for key in task)
        assert size + padded[following[0]] > most, "it would have had room"


def test_a_minute_of_utterances_is_shared_by_all_workers():
    tasks = plan_tasks({f"u{number}": 300 for number in range(20)}, 1, None, workers=4)
    assert len(tasks) >= 4 * TASKS_A_WORKER


def test_hours_of_audio_are_tasks_of_minutes():
    tasks = plan_tasks({f"u{number}": 1000 for number in range(100)} | {"hour": 360000}, 1, None, 2)
    assert tasks[0] == ["hour"]
    assert {len(task) for task in tasks[1:-1]} == {TASK_FRAMES // 1000}
