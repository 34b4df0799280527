"""Options of slurm.pl, mapped to options of sbatch by conf/slurm.conf."""

import pytest
from cases import cases
from refusals import assert_refused, refuses

from espnet_medusa.slurm import configuration
from espnet_medusa.slurm.configuration import parse_request

# A configuration as in ESPnet's recipes.
CONF = """\


command sbatch --export=PATH --account "two words"
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
ALWAYS = ("sbatch", "--export=PATH", "--account", "two words")


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
