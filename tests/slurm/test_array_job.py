"""The script and the options that sbatch gets."""

import os
import random
import subprocess

import pytest

from espnet_medusa.errors import InputError
from espnet_medusa.slurm.array_job import ArrayJob

SHOW = ["python3", "-c", "import sys; print(sys.argv[1:])"]
# Words that a shell changes unless they are quoted, and placeholders of the job's number.
ODD = ["", " ", "a b", "'", '"', "$HOME", "`id`", "*", "\\", "a\nb"]
ODD += ["JOB", "x.JOB.y", "JOBJOB", "%a"]


def run_task(job: ArrayJob, folder, number: int) -> tuple[int, str]:
    job.job_file.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "7"}
    done = subprocess.run(
        ["bash"], input=job.script(folder), env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("seed", range(5))
def test_words_reach_the_command_unchanged_except_for_the_number(tmp_path, in_folder, seed):
    words = random.Random(seed).choices(ODD, k=8)
    status, output = run_task(ArrayJob(range(1, 5), (*SHOW, *words), "x.JOB.log"), tmp_path, 3)
    assert status == 0
    assert output.endswith(f"{[word.replace('JOB', '3') for word in words]}\n")


def test_without_a_placeholder_nothing_is_replaced(tmp_path, in_folder):
    job = ArrayJob(range(1, 2), (*SHOW, "/data/JOB"), "JOB/train.log", placeholder=None)
    assert run_task(job, tmp_path, 1)[1].endswith("['/data/JOB']\n")
    assert str(job.log_of(1)) == "JOB/train.log"
    assert f"--output={tmp_path}/JOB/train.log" in job.sbatch_options(None)


def test_a_task_runs_in_the_recipes_folder_and_environment(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    folder = tmp_path / "a recipe's"
    folder.mkdir()
    (folder / "path.sh").write_text("export WHERE=path.sh\n")
    job = ArrayJob(range(1, 2), ("bash", "-c", 'echo "$WHERE in $PWD"'), f"{folder}/x.JOB.log")
    assert run_task(job, folder, 1)[1].endswith(f"path.sh in {folder}\n")


def test_a_task_writes_its_status_and_its_restarts(tmp_path, monkeypatch):
    job = ArrayJob(range(1, 3), ("bash", "-c", "exit JOB"), f"{tmp_path}/logdir/x.JOB.log")
    assert job.ending(2) is None
    monkeypatch.setenv("SLURM_RESTART_COUNT", "4")
    status, output = run_task(job, tmp_path, 2)
    assert status == 2 and "job 7_2, start 5" in output
    assert (job.ending(2).status, job.ending(2).restarts) == (2, 4)
    assert job.ending_file(2) == tmp_path / "logdir" / "q" / "x.2.ending"


def test_a_restarted_task_has_not_ended(tmp_path):
    job = ArrayJob(range(1, 2), ("cat", f"{tmp_path}/q/x.1.ending"), f"{tmp_path}/x.JOB.log")
    job.job_file.parent.mkdir()
    job.ending_file(1).write_text("0 0\n")
    assert "No such file" in run_task(job, tmp_path, 1)[1]


def test_sbatch_options_have_numbers_log_and_limit(tmp_path, monkeypatch):
    folder = tmp_path / "JOBS 5%"
    folder.mkdir()
    monkeypatch.chdir(folder)
    job = ArrayJob(range(2, 6), ("true",), "exp/100%/decode.JOB.log")
    options = job.sbatch_options(None)
    assert "--array=2-5" in options and "--job-name=decode" in options
    assert f"--output={tmp_path}/JOBS 5%%/exp/100%%/decode.%a.log" in options
    assert "--open-mode=truncate" in options and "--requeue" in options
    assert "--array=2-5%3" in job.sbatch_options(3)
    appended = ArrayJob(range(1, 2), ("true",), "train.log", append=True)
    assert "--open-mode=append" in appended.sbatch_options(None)
    with pytest.raises(InputError, match="backslash"):
        ArrayJob(range(1, 2), ("true",), "a\\b/x.JOB.log").sbatch_options(None)
