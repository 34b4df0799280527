"""Stages on a real Slurm of several nodes: `make test-cluster` starts it, and selects these."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kaldiio
import psutil
import pytest
import torch
from cases import cases
from experiment import make_experiment, write_corpus
from harness import environment
from recipes import ROOT, TRAINING, link_template, write_set
from tiny_whisper import save_tiny_whisper
from waiting import HANG_S, wait_for

from espnet_medusa.recipes.slurm import queue
from espnet_medusa.recipes.train_log import read_epochs

pytestmark = pytest.mark.slurm_cluster
UTTERANCES = 9


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Check for the test cluster, whose nodes the tests may stop."""
    if "slurm_cluster" not in os.environ.get("SLURM_CONF", ""):
        pytest.fail("no test cluster: run `make test-cluster`")


@pytest.fixture(autouse=True)
def all_nodes_serve():
    yield
    for number in (1, 2, 3):
        if re.search("DOWN|DRAIN", node_state(number)):
            scontrol("update", f"nodename=node{number}", "state=resume")


def scontrol(*words: str) -> str:
    return subprocess.run(["scontrol", *words], check=True, capture_output=True, text=True).stdout


def node_state(number: int) -> str:
    return re.search(r" State=(\S+)", scontrol("show", "node", f"node{number}"))[1]


def set_node(number: int, state: str) -> None:
    scontrol("update", f"nodename=node{number}", f"state={state}", "reason=test")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = link_template(tmp_path_factory.mktemp("slurm") / "recipe")
    make_experiment(folder / "exp" / "asr_tiny")
    data = folder / "dump" / "raw" / "test"
    data.mkdir(parents=True)
    write_corpus(data, {f"utt{number}": 0.5 + 0.15 * number for number in range(UTTERANCES)})
    run(folder, *decode_command("local", 1))
    return folder


def decode_command(tag: str, jobs: int, *options: str) -> list[str]:
    return [
        "./asr.sh", "--stage", "12", "--stop_stage", "12", "--skip_train", "true", "--ngpu", "0",
        "--test_sets", "test", "--asr_exp", "exp/asr_tiny", "--inference_asr_model", "model.pth",
        "--audio_format", "wav", "--inference_args", "--search beam --beam_size 2",
        "--inference_tag", tag, "--inference_nj", str(jobs), *options,
    ]  # fmt: skip


def run(folder: Path, *command: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def start(folder: Path, *command: str) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environment(), **pipes, text=True)


def start_decoding(folder: Path, tag: str, jobs: int) -> subprocess.Popen:
    return start(folder, *decode_command(tag, jobs, "--cmd_backend", "slurm"))


def logdir(folder: Path, tag: str) -> Path:
    return folder / "exp" / "asr_tiny" / tag / "test" / "logdir"


def submitted_job(folder: Path, tag: str) -> str:
    record = logdir(folder, tag) / "q" / "asr_inference.job"
    wait_for(lambda: record.is_file() and record.read_text().endswith("\n"))
    return record.read_text().strip()


def wait_until_running(job: str, number: int) -> None:
    wait_for(lambda: queue.task_states(job)[number].name == "RUNNING")


def assert_same_results(folder: Path, tag: str) -> None:
    for name in ("text", "token", "token_int", "score"):
        files = [folder / "exp" / "asr_tiny" / run / "test" / name for run in ("local", tag)]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    assert len(files[0].read_text().splitlines()) == UTTERANCES


def test_a_cancelled_task_is_named_and_the_next_run_does_only_its_work(recipe):
    stage = start_decoding(recipe, "cancelled", 3)
    job = submitted_job(recipe, "cancelled")
    wait_until_running(job, 2)
    subprocess.run(["scancel", f"{job}_2"], check=True)
    _, message = stage.communicate(timeout=HANG_S)
    assert stage.returncode == 1
    log = "exp/asr_tiny/cancelled/test/logdir/asr_inference.2.log"
    assert f"job 2 was cancelled (Slurm: CANCELLED): {log}\n" in message
    assert "1 of 3 jobs failed;" in message and "finished work is kept" in message
    done = run(recipe, *decode_command("cancelled", 3, "--cmd_backend", "slurm"))
    assert_same_results(recipe, "cancelled")
    logs = [logdir(recipe, "cancelled") / f"asr_inference.{n}.log" for n in (1, 2, 3)]
    assert ["INFO: resumed: 3 of 3" in log.read_text() for log in logs] == [True, False, True]
    assert "9/9 utterances (6 of an earlier run)" in done.stderr


def test_a_node_drained_in_stage_12_finishes_its_tasks_and_gets_no_more(recipe):
    # Six tasks fill the three nodes; the others wait.
    stage = start_decoding(recipe, "drained", 8)
    wait_until_running(submitted_job(recipe, "drained"), 1)
    set_node(2, "drain")
    output, message = stage.communicate(timeout=HANG_S)
    assert stage.returncode == 0, output + message
    assert_same_results(recipe, "drained")
    assert "DRAIN" in node_state(2)
    logs = [logdir(recipe, "drained") / f"asr_inference.{n}.log" for n in range(1, 9)]
    commands, heads = zip(*(log.read_text().splitlines()[:2] for log in logs), strict=True)
    begin = "# python3 -m espnet_medusa.bin.asr_inference "
    assert all(command.startswith(begin) for command in commands)
    assert "RTF: " in logs[0].with_name("calculate_rtf.log").read_text()
    nodes = [re.search(r" on (node\d)", line)[1] for line in heads]
    assert nodes.count("node2") == 2 and all("start 1" in line for line in heads)


def test_tasks_of_a_failed_node_restart_on_another(tmp_path):
    script = "echo $SLURMD_NODENAME >> nodes.JOB; while [ ! -e go ]; do sleep 0.1; done"
    words = [sys.executable, "-m", "espnet_medusa.bin.stage", "run_jobs", "--cmd", "slurm.pl"]
    words += ["--on_failure", "wait", "JOB=1:2", "logdir/x.JOB.log", "--", "bash", "-c", script]
    stage = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (tmp_path / "nodes.1").exists() and (tmp_path / "nodes.2").exists())
    node = (tmp_path / "nodes.1").read_text().strip()
    set_node(int(node[-1]), "down")
    wait_for(lambda: len((tmp_path / "nodes.1").read_text().split()) == 2)
    (tmp_path / "go").touch()
    _, message = stage.communicate(timeout=HANG_S)
    assert stage.returncode == 0, message
    again = [n for n in (1, 2) if len((tmp_path / f"nodes.{n}").read_text().split()) == 2]
    assert (tmp_path / "nodes.1").read_text().split()[1] != node
    assert f"Slurm restarted job {', '.join(map(str, again))}\n" in message
    assert "start 2" in (tmp_path / "logdir" / "x.1.log").read_text().splitlines()[1]


@pytest.fixture(scope="module")
def trained_here(tmp_path_factory):
    """A recipe's folder, its statistics and its two-process training by only this machine."""
    folder = link_template(tmp_path_factory.mktemp("slurm") / "training")
    write_set(folder / "own" / "train", 4)
    write_set(folder / "own" / "dev", 2)
    (folder / "conf").mkdir()
    (folder / "conf" / "train.yaml").write_text(TRAINING.replace("max_epoch: 1", "max_epoch: 2"))
    run(folder, *train_command("here", "--stage", "1", "--train_nj", "2"))
    return folder


def train_command(tag: str, *options: str) -> list[str]:
    return [
        "./asr.sh", "--data_dir", "own", "--train_set", "train", "--valid_set", "dev",
        "--skip_eval", "true", "--stop_stage", "11", "--ngpu", "0", "--nj", "2",
        "--token_type", "word", "--asr_config", "conf/train.yaml", "--asr_tag", tag,
        "--asr_stats_dir", f"exp/stats_{tag}", "--train_module", "espnet2.bin.asr_train", *options,
    ]  # fmt: skip


def assert_same_weights(folder: Path, *tags: str) -> None:
    paths = [folder / "exp" / f"asr_{tag}" / "valid.acc.ave.pth" for tag in tags]
    torch.testing.assert_close(*map(torch.load, paths))


@cases(("one_node", ["--train_nj", "2"]), ("two_nodes", ["--num_nodes", "2"]))
def test_statistics_and_training_by_torchrun_equal_those_made_here(tag, options, trained_here):
    folder = trained_here
    run(folder, *train_command(tag, "--stage", "10", "--cmd_backend", "slurm", *options))
    for name in ("train/speech_shape", "train/text_shape.word", "valid/speech_shape"):
        shapes = [(folder / "exp" / f"stats_{run}" / name).read_bytes() for run in ("here", tag)]
        assert shapes[0] == shapes[1], name
    assert "torch.distributed.run" in (folder / "exp" / f"asr_{tag}" / "q" / "train.sh").read_text()
    assert ":0/2]" in (folder / "exp" / f"asr_{tag}" / "train.log").read_text(), "rank 0 of 2"
    assert_same_weights(folder, "here", tag)
    epochs = [read_epochs(folder / "exp" / f"asr_{run}" / "train.log") for run in ("here", tag)]
    assert [*epochs[0]] == [*epochs[1]] == [1, 2]


def test_processes_of_all_nodes_restart_after_one_is_killed(trained_here):
    folder, module, last = trained_here, "espnet_medusa.bin.asr_train", 20
    options = ["--stage", "11", "--train_module", module, "--asr_args", f"--max_epoch {last}"]
    for tag in ("undisturbed", "killed"):
        shutil.copytree(folder / "exp" / "stats_here", folder / "exp" / f"stats_{tag}")
    run(folder, *train_command("undisturbed", *options, "--train_nj", "2"))
    options += ["--cmd_backend", "slurm", "--num_nodes", "2", "--max_restarts", "2"]
    stage = start(folder, *train_command("killed", *options))
    log = folder / "exp" / "asr_killed" / "train.log"
    wait_for(lambda: log.is_file() and "2epoch results" in log.read_text())
    victims = [
        process
        for process in psutil.process_iter(["cmdline"])
        if (words := process.info["cmdline"] or [])[1:3] == ["-m", module]
        if "exp/asr_killed" in words
    ]
    assert len(victims) == 2
    victims[1].kill()
    output, message = stage.communicate(timeout=HANG_S)
    assert stage.returncode == 0, output + message
    assert "The training was resumed using" in log.read_text()
    assert [*read_epochs(log)] == [*range(1, last + 1)]
    assert_same_weights(folder, "undisturbed", "killed")


def test_cached_states_equal_those_of_this_machine(tmp_path, monkeypatch):
    whisper = save_tiny_whisper(tmp_path / "whisper")
    folder = link_template(tmp_path / "recipe", "whisper.sh")
    monkeypatch.chdir(folder)  # paths in the tables are relative to it
    (folder / "conf").symlink_to(ROOT / "egs" / "librispeech" / "asr1" / "conf")
    for name in ("train", "dev"):
        write_set(folder / "own" / name, 3)
    options = [
        "--data_dir", "own", "--train_set", "train", "--valid_set", "dev", "--ngpu", "0",
        "--whisper_model", str(whisper), "--systems", "block", "--labels", "references",
        "--stop_stage", "11", "--states_nj", "2", "--asr_args",
        "--batch_size 1 --accum_grad 1 --max_epoch 1 --num_workers 0 --use_tensorboard false",
    ]  # fmt: skip
    remaining = []
    for backend in ("local", "slurm"):
        folders = ["--dumpdir", f"dump_{backend}", "--expdir", f"exp_{backend}"]
        done = run(folder, "./whisper.sh", *options, "--cmd_backend", backend, *folders)
        assert "states of 3 of 3 utterances" in done.stdout
        states = folder / f"dump_{backend}" / "states_references" / "train"
        tables = [kaldiio.load_scp(str(states / name)) for name in ("states.scp", "memory.scp")]
        remaining.append([{key: table[key] for key in table} for table in tables])
    for here, there in zip(*remaining, strict=True):
        assert [*here] == [*there] and len(here) == 3
        assert all((here[key] == there[key]).all() for key in here)
    first = (states / "cache_states.1.log").read_text().splitlines()[1]
    assert re.search(r"on node\d, by Slurm's job", first)
