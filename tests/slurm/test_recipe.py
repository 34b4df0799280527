"""Options of sbatch by the stages of asr.sh with --cmd_backend slurm, on a fake Slurm."""

import os
import subprocess
from pathlib import Path

import pytest
import warm_python
from cases import cases
from pretended_slurm import PretendedSlurm
from recipes import link_template

CONF = """\
command sbatch --comment x
option num_threads=* --cpus-per-task $0
option num_nodes=* --nodes $0
default gpu=0
option gpu=0 -p cpu
option gpu=* -p gpu --gres=gpu:$0
"""
RESTARTS = ("--max_restarts", "3")


@pytest.fixture
def slurm(tmp_path, in_folder, monkeypatch):
    """Return a fake Slurm; the current folder is a recipe with data of five utterances."""
    link_template(tmp_path)
    Path("conf").mkdir()
    Path("conf/slurm.conf").write_text(CONF)
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
    assert "--array=1-3" in requests and requests[-4:-1] == ["x", "-p", "cpu"]
    assert f"--output={Path.cwd()}/exp/stats/logdir/stats.%a.log" in requests
    assert "failed with status 1: exp/stats/logdir/stats." in message


@cases(
    (["--ngpu", "0"], ["-p", "cpu"]),
    (["--ngpu", "0", "--train_nj", "2", *RESTARTS], ["--cpus-per-task", "2", "-p", "cpu"]),
    (["--ngpu", "4"], ["-p", "gpu", "--gres=gpu:4"]),
    (["--ngpu", "1", "--num_nodes", "3"], ["-p", "gpu", "--gres=gpu:1", "--nodes", "3"]),
)
def test_training_requests_its_resources(options, resources, slurm):
    message, requests = run_stage(slurm, 11, *options)
    assert sorted(requests[-1 - len(resources) : -1]) == sorted(resources)
    assert f"--output={Path.cwd()}/exp/tiny/train.log" in requests
    if RESTARTS[0] in options:
        assert "--nproc_per_node=2 --max_restarts=3 " in Path("exp/tiny/q/train.sh").read_text()
    assert ": exp/tiny/train.log" in message and "finished epochs are kept" in message


@cases(([], ["-p", "cpu"]), (["--gpu_inference", "true"], ["-p", "gpu", "--gres=gpu:1"]))
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
