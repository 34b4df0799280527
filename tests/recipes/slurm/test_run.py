"""Array jobs on a fake Slurm: queue, waiting, reports, cancellation and refusals."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cases import cases, combinations
from pretended_slurm import PretendedSlurm
from recipes import write_script
from refusals import assert_refused, command_refused, exit_status
from waiting import HANG_S, is_alive, wait_for

from espnet_medusa.bin import stage
from espnet_medusa.recipes.slurm import run
from espnet_medusa.recipes.slurm.array_job import ArrayJob
from espnet_medusa.recipes.slurm.configuration import Request
from espnet_medusa.recipes.slurm.queue import TaskState, parse_states, submit, summarize
from espnet_medusa.recipes.slurm.run import run_array

REQUEST = Request(("sbatch",))


@pytest.fixture
def slurm(tmp_path, in_folder, monkeypatch):
    monkeypatch.setattr(run, "SHORTEST_POLL_S", 0.02)
    monkeypatch.setattr(run, "SHOW_S", 0.05)
    return PretendedSlurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def earlier_job(slurm) -> Path:
    Path("logdir/q").mkdir(parents=True)
    Path("logdir/q/x.job").write_text("5\n")
    return Path("logdir")


def run_script(script: str, *options: str, jobs: int = 1) -> None:
    stage.main(["run_jobs", *options, f"JOB=1:{jobs}", "x.JOB.log", "--", "bash", "-c", script])


def make_array(script: str, count: int = 3) -> ArrayJob:
    return ArrayJob(range(1, count + 1), ("bash", "-c", script), "logdir/x.JOB.log")


def endings(array: ArrayJob, stop: bool = False, **options) -> list[tuple[str, str]]:
    failures, _ = run_array(array, REQUEST, stop, **options)
    return [(failure.job.name, failure.ending) for failure in failures]


def test_tasks_run_and_are_shown(slurm):
    shown = []
    array = make_array("echo number JOB; while [ ! -e go ]; do sleep 0.02; done")

    def show(summary: str) -> None:
        shown.append(summary)
        if "3 running" in summary:
            Path("go").touch()

    assert run_array(array, REQUEST, False, show) == ([], [])
    for number in (1, 2, 3):
        assert f"\nnumber {number}\n" in Path(f"logdir/x.{number}.log").read_text()
    assert "job 1: 3 running" in shown and shown[-1] == "job 1"
    assert not Path("logdir/q/x.job").exists()


def test_failed_and_cancelled_tasks_are_named_and_the_others_finish(slurm):
    script = (
        "case JOB in 1) exit 7 ;; 2) scancel 1_2; sleep 1000 ;; esac; sleep 0.3; touch done.JOB"
    )
    assert endings(make_array(script)) == [
        ("job 1", "failed with status 7"),
        ("job 2", "was cancelled (Slurm: CANCELLED)"),
    ]
    assert Path("done.3").exists()


def test_a_failure_cancels_the_others_with_stop_on_failure(slurm):
    array = make_array(f"[ JOB != 2 ] || exit 3; sleep {HANG_S}")
    assert endings(array, stop=True) == [("job 2", "failed with status 3")]
    pids = [int(path.read_text()) for path in slurm.states.glob("1.*.pid")]
    wait_for(lambda: not any(map(is_alive, pids)))


@cases(
    ("TIMEOUT|TimeLimit", "ran out of time (Slurm: TIMEOUT)"),
    ("OUT_OF_MEMORY|OutOfMemory", "ran out of memory (Slurm: OUT_OF_MEMORY)"),
    ("NODE_FAIL|NodeDown", "lost its node (Slurm: NODE_FAIL)"),
    ("FAILED|RaisedSignal:9(Killed)", "failed (Slurm: RaisedSignal:9(Killed))"),
)
def test_slurms_reason_for_a_failure_is_named(state, ending, slurm):
    # The task is killed before it can write its status.
    script = f'cd "$PRETENDED_SLURM"; echo "{state}" > message.JOB; mv message.JOB 1.JOB; '
    script += 'read -ra stat < /proc/$PPID/stat; kill -KILL "${stat[3]}" $PPID'
    assert endings(make_array(script, 1)) == [("job 1", ending)]


def test_ending_files_decide_when_slurm_does_not_answer(slurm):
    slurm.close_down()
    expected = [("job 2", "failed with status 1"), ("job 3", "failed with status 2")]
    assert endings(make_array("exit $((JOB - 1))")) == expected


def test_ending_files_decide_when_slurm_has_forgotten_a_job(slurm):
    array = make_array("touch started.JOB; [ JOB = 3 ] || exit $((JOB - 1)); exec sleep 1000")

    def show(summary: str) -> None:
        if array.ending(1) and array.ending(2) and Path("started.3").exists():
            slurm.forget()

    assert endings(array, show=show) == [
        ("job 2", "failed with status 1"),
        ("job 3", "left Slurm's queue without an exit status"),
    ]
    for path in slurm.states.glob("*.3.pid"):
        os.killpg(int(path.read_text()), signal.SIGKILL)


def test_restarted_tasks_are_returned(slurm, monkeypatch):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert run_array(make_array("true", 2), REQUEST, False) == ([], [1, 2])


def test_a_refused_job_is_an_error_with_the_command(slurm):
    job = make_array("true"), Request(("sbatch", "--account=nobody")), False
    assert_refused("Invalid account; .*sbatch .*=nobody", run_array, *job)


def test_no_second_run_while_the_first_is_in_the_queue(slurm, earlier_job):
    for task, state in enumerate(["COMPLETED|None", "RUNNING|None", "PENDING|Priority"], 1):
        slurm.set_state(5, task, state)
    message = "job 5 of an earlier run .* with 2 tasks; .*`scancel 5`"
    assert_refused(message, run_array, make_array("true"), REQUEST, False)
    for task in (2, 3):
        slurm.set_state(5, task, "CANCELLED|None")
    assert endings(make_array("true")) == []


def test_files_of_a_running_job_are_not_removed(slurm, earlier_job, capsys):
    Path("logdir/keys.1.scp").write_text("other\n")
    Path("logdir/x.1.log").write_text("log\n")
    Path("keys").write_text("a\nb\n")
    slurm.set_state(5, 1, "RUNNING|None")
    split = ["--nj", "2", "--keys", "keys", "--output", "logdir/keys.JOB.scp"]
    for command in (
        ["run_jobs", "JOB=1:1", "logdir/x.JOB.log", "--", "true"],
        ["split_keys", *split, "--work_dir", "logdir"],
        ["split_keys", *split, "--work_dir", "logdir", "--resume", "false"],
    ):
        with command_refused(capsys, "job 5 of an earlier run is still in Slurm's queue"):
            stage.main(command)
    assert Path("logdir/x.1.log").exists() and Path("logdir/keys.1.scp").exists()


def test_without_slurms_programs_they_and_the_job_file_are_named(earlier_job, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert_refused("sbatch: not in PATH; --cmd_backend slurm", submit, ["sbatch", "x.sh"])
    assert_refused("q/x.job: job 5 .* squeue is not in PATH", run.refuse_active_jobs, earlier_job)


@combinations(number=[signal.SIGINT, signal.SIGTERM], prefix=["", "slurm.pl"])
def test_interrupting_the_runner_ends_its_jobs(slurm, number, prefix):
    script = f"echo $$ > pid.JOB.new; mv pid.JOB.new pid.JOB; exec sleep {HANG_S}"
    runner = subprocess.Popen(
        [sys.executable, "-m", "espnet_medusa.bin.stage", "run_jobs", "--cmd", prefix, "JOB=1:2"]
        + ["x.JOB.log", "--", "bash", "-c", script],
        stderr=subprocess.DEVNULL,
        # A shell's background jobs ignore Ctrl-C, and so would this one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        wait_for(lambda: Path("pid.1").exists() and Path("pid.2").exists())
        pids = [int(Path(f"pid.{task}").read_text()) for task in (1, 2)]
        assert all(map(is_alive, pids))
        runner.send_signal(number)
        assert runner.wait(timeout=HANG_S) != 0
        wait_for(lambda: not any(map(is_alive, pids)))
        if prefix:
            assert slurm.states.joinpath("1.1").read_text() == "CANCELLED|None"
    finally:
        runner.kill()


def test_jobs_go_to_slurm_with_the_configurations_options(slurm, capsys):
    Path("conf").mkdir()
    Path("conf/slurm.conf").write_text("command sbatch -p cpu\noption mem=* --mem $0\n")
    options = ["--cmd", "slurm.pl --mem 2G --max-jobs-run 2", "--title", "statistics"]
    run_script("echo job JOB", *options, jobs=4)
    submitted = slurm.submitted()
    assert submitted[-5:-1] == ["-p", "cpu", "--mem", "2G"] and "--array=1-4%2" in submitted
    assert "job 4\n" in Path("x.4.log").read_text()
    assert re.search(r"statistics: 4 jobs, elapsed \d+:\d\d", capsys.readouterr().err)


def test_a_failed_stage_names_jobs_logs_and_remedy(slurm, capsys):
    options = ["--cmd", "slurm.pl", "--on_failure", "wait", "--title", "exp test"]
    with pytest.raises(SystemExit, match="1"):
        run_script("echo last words of JOB; exit $((JOB % 2))", *options, jobs=9)
    message = capsys.readouterr().err
    for job in (1, 3, 5, 7, 9):
        assert f"job {job} failed with status 1: x.{job}.log\n" in message
    assert "last words of 5\n" in message and "last words of 7\n" not in message
    assert "exp test: 5 of 9 jobs failed;" in message and "finished work is kept" in message


def test_a_task_that_listed_failed_utterances_has_not_failed(slurm):
    options = ["--cmd", "slurm.pl", "--on_failure", "wait"]
    run_script("exit 3", *options)
    assert_refused("1", run_script, "scancel 2_JOB; sleep 1000", *options, error=SystemExit)


def test_one_training_process_appends_to_the_log(slurm):
    Path("exp").mkdir()
    Path("exp/train.log").write_text("before\n")
    options = ["--log", "exp/train.log", "--cmd", "slurm.pl"]
    stage.main(["run_training", *options, "--", "echo", "/JOB/train"])
    log = Path("exp/train.log").read_text()
    assert log.startswith("before\n# echo /JOB/train\n") and log.endswith("\n/JOB/train\n")


@cases(
    ("", ["--nj", "2"], "--nodes=1", "--nproc_per_node=2 .*--dist_backend gloo"),
    ("", ["--max_restarts", "2"], "--nodes=1", "--nproc_per_node=1 --max_restarts=2 .*gloo"),
    ("--num_nodes 3", [], "--nodes=3", "--nnodes=3 --nproc_per_node=1 .*--dist_backend gloo"),
    ("--gpu 4", [], "--nodes=1", "--nproc_per_node=4 .*--ngpu 1"),
    ("--gpu 1 --num_nodes 2", [], "--nodes=2", "--nnodes=2 --nproc_per_node=1 .*--ngpu 1"),
)
def test_torchrun_starts_training_processes(
    prefix, options, launched, expected, slurm, monkeypatch, tmp_path
):
    write_script(tmp_path / "programs" / "srun", '#!/bin/sh\necho "srun $@"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    command = ["--log", "train.log", *options, "--cmd", f"slurm.pl {prefix}"]
    stage.main(["run_training", *command, "--", "my-python", "-m", "train", "--lr", "1"])
    line = Path("train.log").read_text().splitlines()[-1]
    assert line.startswith(f"srun {launched} --ntasks-per-node=1 ")
    own_store = " env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 my-python "
    assert (own_store in line) == ("--max_restarts" in options)
    assert re.search(f" my-python -m torch.distributed.run .*{expected}$", line)
    assert "--no-python my-python -m train --lr 1 --multiprocessing_distributed false " in line
    assert "--cpus-per-task=1 " in line
    cores = ["--cpus-per-task", "2"] if "--nj" in options else []
    assert [word for word in slurm.submitted() if word in cores] == cores


def test_run_command_returns_output_and_status(slurm, capfd):
    for prefix in ("", "slurm.pl"):
        options = ["--cmd", prefix, "--log", "x.log", "--", "bash", "-c"]
        stage.main(["run_command", *options, "echo of JOB"])
        assert capfd.readouterr().out.endswith("of JOB\n")
        command = "run_command", *options
        assert exit_status(stage.main, *command, "echo some are left out; exit 3") == 3
        assert "some are left out\n" in capfd.readouterr().out
        # As a shell's, after signal 9.
        assert exit_status(stage.main, *command, "kill -9 $$") == 137


ANSWER = """\
1|COMPLETED|None
2|RUNNING|None
3|RUNNING|None
4|PENDING|Resources
10|PENDING|ReqNodeNotAvail, UnavailableNodes:node[1-2]
11|CANCELLED|None
"""


def test_states_are_parsed_by_task_number_and_active_ones_counted():
    states = parse_states(ANSWER)
    assert [*states] == [1, 2, 3, 4, 10, 11]
    reason = "ReqNodeNotAvail, UnavailableNodes:node[1-2]"
    assert states[10] == TaskState("PENDING", reason)
    assert [number for number, state in states.items() if state.has_ended] == [1, 11]
    assert summarize(states) == f"2 running, 2 pending ({reason}, Resources)"
    assert parse_states("CLUSTER: other\n") == {}
    assert summarize({1: TaskState("COMPLETED")}) == ""
