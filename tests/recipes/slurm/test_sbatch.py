"""What sbatch gets: its script, options of slurm.conf, and those of asr.sh on a fake Slurm."""

import os
import random
import subprocess
from pathlib import Path

import pytest
import warm_python
from cases import cases
from pretended_slurm import PretendedSlurm
from recipes import link_template
from refusals import assert_refused, refuses

from espnet_medusa.recipes.slurm import configuration
from espnet_medusa.recipes.slurm.array_job import ArrayJob
from espnet_medusa.recipes.slurm.configuration import parse_request

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
    backslash = ArrayJob(range(1, 2), ("true",), "a\\b/x.JOB.log")
    assert_refused("backslash", backslash.sbatch_options, None)


# A configuration as in ESPnet's recipes.
CONF = """\


command sbatch --export=PATH --comment "two words"
option name=* --job-name $0
option mem=* --mem-per-cpu $0
option mem=0          # adds nothing
option num_threads=* --cpus-per-task $0
option num_threads=1 --cpus-per-task 1
option num_nodes=* --nodes $0
default gpu=0
option gpu=0 -p cpu
option gpu=* -p gpu --gres=gpu:$0 -c $0  # as many cores
"""
ALWAYS = ("sbatch", "--export=PATH", "--comment", "two words")


@pytest.fixture
def conf(tmp_path, in_folder):
    path = tmp_path / "conf" / "slurm.conf"
    path.parent.mkdir()
    path.write_text(CONF)
    return path


@cases(
    ("", ["-p", "cpu"]),
    ("--gpu 0", ["-p", "cpu"]),
    ("--gpu 2", ["-p", "gpu", "--gres=gpu:2", "-c", "2"]),
    ("--mem 0", ["-p", "cpu"]),
    ("--mem 4G", ["-p", "cpu", "--mem-per-cpu", "4G"]),
    ("--mem 4G --mem 8G", ["-p", "cpu", "--mem-per-cpu", "8G"]),
    ("--num-threads 1", ["-p", "cpu", "--cpus-per-task", "1"]),
    ("--num_threads 3", ["-p", "cpu", "--cpus-per-task", "3"]),
    ("--name 'a b'", ["-p", "cpu", "--job-name", "a b"]),
    ("--name '$HOME \"x\"'", ["-p", "cpu", "--job-name", '$HOME "x"']),
)
def test_options_become_those_of_the_configuration(options, added, conf):
    assert parse_request(f"slurm.pl {options}").command == (*ALWAYS, *added)


@cases(("--gpu 4 --num_nodes 2 --max-jobs-run 8", (4, 2, 8)), ("", (0, 1, None)))
def test_counts_that_jobs_need_are_read_from_the_options(options, counts, conf):
    request = parse_request(f"slurm.pl {options}")
    assert (request.gpus, request.nodes, request.most_at_once) == counts


def test_threads_of_the_command_line_win_over_those_of_the_stage(conf):
    assert parse_request("slurm.pl", threads=2).command[-2:] == ("--cpus-per-task", "2")
    request = parse_request("slurm.pl --num_threads 5", threads=2)
    assert "5" in request.command and "2" not in request.command


def test_without_a_file_the_cluster_chooses_the_partition(in_folder):
    assert parse_request("slurm.pl").command == ("sbatch",)
    request = parse_request("/kaldi/utils/slurm.pl --gpu 1 --mem 2G --time 1:00:00")
    words = {"sbatch", "--gres=gpu:1", "--mem-per-cpu", "2G", "--time", "1:00:00"}
    assert set(request.command) == words


def test_another_file_can_be_named(conf, tmp_path):
    lines = "command sbatch -p other\noption gpu=* --gpus-per-node $0\n"
    (tmp_path / "other.conf").write_text(lines)
    assert parse_request("slurm.pl --config other.conf --gpu 3").command[-1] == "3"


@refuses(
    ("--queue long", r"--queue long: conf/slurm.conf has name=\*, .*`option queue=\*"),
    ("--mem", "slurm.pl --mem: options are --name value"),
    ("-l gpu=1", "options are --name value"),
    ("--gpu one", "--gpu one: allowed: a whole"),
    ("--config nowhere.conf", "--config nowhere.conf: no such file"),
    ("--max_jobs_run x", "--max_jobs_run x: allowed: a whole"),
)
def test_bad_options_are_refused_by_name(options, conf):
    parse_request(f"slurm.pl {options}")


@pytest.mark.parametrize(
    "line", ["optoin gpu=0 -p cpu", "option gpu", "default gpu", "default gpu=0 -p x", "command"]
)
def test_bad_lines_are_named(line):
    given = f"# first\n{line}\n", "x.conf"
    assert_refused(f"x.conf:2: '{line}'; allowed: ", configuration.parse_configuration, *given)


def test_the_default_has_the_options_that_recipes_give():
    default = configuration.read_configuration(configuration.DEFAULT)
    assert {"gpu", "num_nodes", "num_threads", "mem", "time"} <= {n for n, _ in default.options}


def test_prefixes_of_slurm():
    prefixes = ["slurm.pl", "utils/slurm.pl --mem 4G", "", "srun -n 1", "env slurm.pl"]
    assert [*map(configuration.is_slurm, prefixes)] == [True, True, False, False, False]


RESTARTS = ("--max_restarts", "3")


@pytest.fixture
def slurm(tmp_path, conf, monkeypatch):
    """Return a fake Slurm; the current folder is a recipe with data of five utterances."""
    link_template(tmp_path)
    for name in ("train", "dev", "test"):
        data = Path("dump/raw") / name
        data.mkdir(parents=True)
        for table in ("wav.scp", "text"):
            (data / table).write_text("".join(f"u{number} x\n" for number in range(5)))
    return PretendedSlurm(tmp_path / "slurm", monkeypatch)


def run_stage(slurm: PretendedSlurm, stage: int, *options: str) -> tuple[str, list[str]]:
    """Run a stage whose Python does nothing; return stderr and the arguments of sbatch."""
    warm = warm_python.environment()
    paths = os.pathsep.join([str(slurm.programs), warm["PATH"]])
    done = subprocess.run(
        [
            "./asr.sh", "--cmd_backend", "slurm", "--train_set", "train", "--valid_set", "dev",
            "--test_sets", "test", "--token_type", "word", "--python", "false",
            "--asr_exp", "exp/tiny", "--asr_stats_dir", "exp/stats", "--inference_tag", "tag",
            "--stage", str(stage), "--stop_stage", str(stage), *options,
        ],
        env={**warm, "PATH": paths, "PRETENDED_SLURM": str(slurm.states)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr, slurm.submitted()


def test_statistics_are_an_array_job(slurm):
    message, requests = run_stage(slurm, 10, "--nj", "3")
    assert "--array=1-3" in requests and requests[-4:-1] == ["two words", "-p", "cpu"]
    assert f"--output={Path.cwd()}/exp/stats/logdir/stats.%a.log" in requests
    assert "failed with status 1: exp/stats/logdir/stats." in message


@cases(
    (["--ngpu", "0"], ["-p", "cpu"]),
    (["--ngpu", "0", "--train_nj", "2", *RESTARTS], ["--cpus-per-task", "2", "-p", "cpu"]),
    (["--ngpu", "4"], ["-p", "gpu", "--gres=gpu:4", "-c", "4"]),
    (["--num_nodes", "3"], ["-p", "gpu", "--gres=gpu:1", "-c", "1", "--nodes", "3"]),
)
def test_training_requests_its_resources(options, resources, slurm):
    message, requests = run_stage(slurm, 11, *options)
    assert sorted(requests[-1 - len(resources) : -1]) == sorted(resources)
    assert f"--output={Path.cwd()}/exp/tiny/train.log" in requests
    if RESTARTS[0] in options:
        assert "--nproc_per_node=2 --max_restarts=3 " in Path("exp/tiny/q/train.sh").read_text()
    assert ": exp/tiny/train.log" in message and "finished epochs are kept" in message


@cases(([], ["-p", "cpu"]), (["--gpu_inference", "true"], ["-p", "gpu", "--gres=gpu:1", "-c", "1"]))
def test_decoding_is_an_array_job_with_one_gpu_per_task(options, resources, slurm):
    message, requests = run_stage(slurm, 12, "--inference_nj", "2", *options)
    assert "--array=1-2" in requests and requests[-1 - len(resources) : -1] == resources
    log = "exp/tiny/tag/test/logdir/asr_inference"
    assert f"--output={Path.cwd()}/{log}.%a.log" in requests
    for job in (1, 2):
        assert f"job {job} failed with status 1: {log}.{job}.log" in message
        text = Path(f"{log}.{job}.log").read_text()
        assert text.startswith("# false -m espnet_medusa.bin.asr_inference ")
    assert "2 of 2 jobs failed" in message and "finished work is kept" in message
