"""Running jobs: logs, failures, what is stopped and what is not."""

from pathlib import Path

import pytest
from cases import cases
from refusals import assert_refused, command_refused
from waiting import HANG_S, is_alive, wait_for

from espnet_medusa.bin import stage
from espnet_medusa.recipes.jobs import Job, parse_range, run, visible_gpus
from espnet_medusa.recipes.torchrun import without_report


def shell_job(folder: Path, name: str, script: str) -> Job:
    return Job(name, ("bash", "-c", script), folder / f"{name}.log")


def run_script(folder: Path, script: str, *options: str, jobs: int = 1) -> None:
    words = ["run_jobs", *options, f"JOB=1:{jobs}", f"{folder}/logs/x.JOB.log"]
    stage.main([*words, "--", "bash", "-c", script])


def log_of(folder: Path, job: int) -> str:
    return (folder / "logs" / f"x.{job}.log").read_text()


def test_each_job_gets_its_number_and_log_and_a_prefix_comes_before_the_command(tmp_path):
    run_script(tmp_path, f"echo out JOB; echo err JOB >&2; touch {tmp_path}/JOB", jobs=3)
    for job in (1, 2, 3):
        assert (tmp_path / str(job)).exists()
        assert {f"out {job}", f"err {job}"} <= {*log_of(tmp_path, job).splitlines()}
    run_script(tmp_path, "echo runs on $WHERE", "--cmd", "env WHERE=cluster")
    assert "runs on cluster" in log_of(tmp_path, 1)


def test_failing_job_shows_the_last_20_lines_and_the_log(tmp_path, capfd):
    with pytest.raises(SystemExit, match="1"):
        run_script(tmp_path, "for i in $(seq 30); do echo line $i; done; exit 7")
    shown = capfd.readouterr().err
    assert "line 11\n" in shown and "line 30\n" in shown and "line 10\n" not in shown
    assert f"job 1 failed with status 7: {tmp_path}/logs/x.1.log" in shown


def test_a_failure_stops_the_others_with_their_children(tmp_path):
    pid_file = tmp_path / "pid"
    long = f"sleep {HANG_S} & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}; wait; "
    long += f"touch {tmp_path}/not_stopped"
    bad = f"while [ ! -e {pid_file} ]; do sleep 0.02; done; exit 3"
    jobs = [shell_job(tmp_path, "long", long), shell_job(tmp_path, "bad", bad)]
    failures = run(jobs, most_at_once=2, stop_on_failure=True)
    assert [(failure.job.name, failure.status) for failure in failures] == [("bad", 3)]
    assert not (tmp_path / "not_stopped").exists()
    wait_for(lambda: not is_alive(int(pid_file.read_text())))


def test_other_jobs_finish_after_a_failure_with_wait(tmp_path):
    scripts = {"bad": "exit 3", "good": f"sleep 0.5; touch {tmp_path}/done"}
    jobs = [shell_job(tmp_path, *job) for job in scripts.items()]
    failures = run(jobs, most_at_once=1, stop_on_failure=False)
    assert [failure.job.name for failure in failures] == ["bad"]
    assert (tmp_path / "done").exists()


def test_no_more_jobs_at_once_than_allowed(tmp_path):
    script = f"mkdir {tmp_path}/alone || exit 1; sleep 0.1; rmdir {tmp_path}/alone"
    jobs = [shell_job(tmp_path, f"job{number}", script) for number in range(3)]
    assert run(jobs, most_at_once=1, stop_on_failure=True) == []


def test_a_job_that_listed_failed_utterances_has_not_failed(tmp_path):
    wait = ["--on_failure", "wait"]
    run_script(tmp_path, "exit 3", *wait, jobs=2)
    for script, options in (("exit $((JOB == 1 ? 3 : 1))", wait), ("exit 3", [])):
        assert_refused("1", run_script, tmp_path, script, *options, jobs=2, error=SystemExit)


def test_jobs_take_the_visible_gpus_in_turn(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setenv("WHERE", "here")
    run_script(tmp_path, "echo seen: $CUDA_VISIBLE_DEVICES $WHERE", "--spread_gpus", "true", jobs=3)
    seen = [log_of(tmp_path, job).split("seen: ")[-1].strip() for job in (1, 2, 3)]
    assert seen == ["3 here", "5 here", "3 here"]
    with pytest.raises(ValueError, match="--gpu_inference false"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize("text", ["1:4", "JOB=a:4", "JOB=4:1", "JOB=", "N=1:2"])
def test_bad_ranges_are_refused(text):
    assert_refused("JOB|no job", parse_range, text, error=ValueError)


def test_missing_program_is_named(tmp_path, capsys):
    with command_refused(capsys, "cannot start no_such_program"):
        stage.main(["run_jobs", "JOB=1:1", f"{tmp_path}/x.log", "--", "no_such_program"])


def test_training_processes_meet_in_a_new_file_with_ranks_from_0(tmp_path):
    log = tmp_path / "exp" / "train.log"
    for _ in range(2):
        stage.main(["run_training", "--log", str(log), "--nj", "2", "--", "echo", "train"])
    ranks = [log.read_text(), log.with_suffix(".rank1.log").read_text()]
    for rank, text in enumerate(ranks):
        assert f"--dist_world_size 2 --dist_rank {rank} --dist_init_method file:///" in text
        assert "--dist_backend gloo" in text
    meeting = [line.split()[-1] for line in ranks[0].splitlines() if line.startswith("train ")]
    assert len(set(meeting)) == 2, "a resumed run adds to the log and meets elsewhere"
    assert not list(tmp_path.glob("exp/.rendezvous*"))


@cases(
    ([], 1, "--multiprocessing_distributed false --dist_backend gloo"),
    (["--nj", "2"], 2, "--multiprocessing_distributed false --dist_backend gloo"),
    (["--ngpu", "4"], 4, "--multiprocessing_distributed false --ngpu 1"),
)
def test_torchrun_starts_processes_that_may_restart(
    options, processes, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    log = tmp_path / "train.log"
    options = ["--log", str(log), *options, "--max_restarts", "3"]
    stage.main(["run_training", *options, "--", "echo", "-m", "train"])
    assert log.read_text().splitlines()[-1] == (
        f"-m torch.distributed.run --nnodes=1 --nproc_per_node={processes} --max_restarts=3 "
        f"--standalone --no-python echo -m train {expected}"
    )
    assert not log.with_suffix(".rank1.log").exists()


def test_last_words_are_the_processes_not_torchruns():
    failed = (
        "E1123 05:09:16.261000 21181 torch/distributed/elastic/multiprocessing/api.py:1002] failed "
        "(exitcode: 1) local_rank: 0 (pid: 21196) of binary: bash\n"
    )
    run = f"# train\n# started at 5\nerror: a\n{failed}error: b\n"
    assert without_report(f"{run}{failed}Traceback\n") == run
    later = f"{run}{failed}Traceback\n# train\n# started at 6\ncannot bind\n"
    assert without_report(later) == later
    assert without_report("error: b\n") == "error: b\n"


def test_one_failing_training_process_ends_the_other(tmp_path, capfd):
    script = 'echo "$@" | grep -q "dist_rank 1" && exit 4; '
    script += f"sleep {HANG_S}; touch {tmp_path}/not_stopped"
    command = ["run_training", "--log", f"{tmp_path}/train.log", "--nj", "2", "--", "bash", "-c"]
    with command_refused(capfd, "training process 1 failed with status 4"):
        stage.main([*command, script, "bash"])
    assert not (tmp_path / "not_stopped").exists()


def test_missing_gpus_are_named_before_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    log = tmp_path / "train.log"
    command = ["run_training", "--log", str(log), "--ngpu", "2", "--cmd", " ", "--", "touch", "x"]
    with command_refused(capsys, "--ngpu 2: torch finds 0 GPUs here; allowed: 0, which uses"):
        stage.main(command)
    assert not log.exists()
