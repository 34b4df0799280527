"""The command: arguments, files, exit status."""

import subprocess
import sys

import pytest
from refusals import command_refused, refused

from espnet_medusa.bin.sclite import main


@pytest.fixture
def files(tmp_path):
    (tmp_path / "ref.trn").write_text("a b c (s-1)\nD (s-2)\n", encoding="utf-8")
    (tmp_path / "hyp.trn").write_text("a x c (s-1)\nd (s-2)\n", encoding="utf-8")
    return ["-r", f"{tmp_path}/ref.trn", "trn", "-h", f"{tmp_path}/hyp.trn", "trn", "hyp"]


def run(capsys, *arguments: str) -> str:
    main(list(arguments))
    return capsys.readouterr().out


def test_default_is_the_summary(files, capsys):
    printed = run(capsys, *files, "-i", "rm")
    assert printed.count("Sum/Avg") == 1
    assert "| Sum/Avg|    2      4 | 75.0   25.0    0.0    0.0   25.0   50.0 |" in printed
    assert "DUMP" not in printed


def test_reports_switch(files, capsys):
    printed = run(capsys, *files, "-i", "rm", "-o", "all", "sum", "-o", "stdout")
    assert "Sum/Avg" not in printed
    assert "| Sum  |" in printed
    assert "DUMP OF SYSTEM ALIGNMENT STRUCTURE" in printed
    assert run(capsys, *files, "-i", "rm", "-o", "pra", "stdout").startswith("\n\n\t\tDUMP")


def test_case_counts_on_request(files, capsys):
    assert "Case_sensitve" in run(capsys, *files, "-i", "rm", "-o", "all", "stdout", "-s")
    assert "| 50.0   50.0 " in run(capsys, *files, "-i", "rm", "-s")


def test_title_and_several_hypotheses(files, capsys):
    printed = run(capsys, *files[:6], "first", *files[3:6], "second", "-i", "rm")
    assert printed.count("Sum/Avg") == 2
    assert printed.index(" first ") < printed.index(" second ")


def test_reports_go_to_files(files, tmp_path, capsys):
    assert run(capsys, *files, "-i", "rm", "-o", "all") == ""
    (tmp_path / "out").mkdir()
    run(capsys, *files, "-i", "rm", "-o", "sum", "-O", str(tmp_path / "out"), "-n", "best")
    for path in ["hyp.trn.sys", "out/best.sys"]:
        assert "Sum/Avg" in (tmp_path / path).read_text(encoding="utf-8")
    assert "| Sum  |" in (tmp_path / "hyp.trn.raw").read_text(encoding="utf-8")
    assert "id: (s-1)" in (tmp_path / "hyp.trn.pra").read_text(encoding="utf-8")
    assert not (tmp_path / "out" / "best.raw").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "dtl"], ["dtl", "sum, rsum, pralign"]),
        (["-c", "DH"], ["DH", "NOASCII"]),
        (["--sclite", "/no/such/program"], ["/no/such/program"]),
        (["--sclite", f"{sys.executable} -c exit(3)"], ["status 3"]),
        (["-O", "/no/such/folder", "-o", "sum"], ["/no/such/folder"]),
    ],
)
def test_errors_are_one_line(files, arguments, words):
    with refused(*words, error=SystemExit) as caught:
        main([*files, "-i", "rm", *arguments])
    assert isinstance(caught.value.code, str)  # Python prints it and exits with status 1.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-i", "atis"], ["atis", "'rm'"]),
        (["-i", "rm", "-F"], ["-F", "supported:", "-r -h -i -o"]),
        (["-i", "rm", "-e", "gb"], ["gb", "utf-8"]),
        (["-i", "rm", "--allow_missing", "maybe"], ["maybe", "true and false"]),
        ([], ["-i"]),
    ],
)
def test_unknown_arguments_are_refused(files, arguments, words, capsys):
    with command_refused(capsys, *words, status=2):
        main([*files, *arguments])


def test_other_formats_are_refused(files):
    with pytest.raises(SystemExit, match="-r: format 'stm' is not supported; use trn"):
        main([*files[:2], "stm", *files[3:], "-i", "rm"])
    with pytest.raises(SystemExit, match="-h: format 'ctm'"):
        main([*files[:5], "ctm", "-i", "rm"])


def test_characters_of_other_scripts_need_their_encoding(files, tmp_path, capsys):
    (tmp_path / "hyp.trn").write_text("東 (s-1)\nd (s-2)\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="-e utf-8"):
        main([*files, "-i", "rm", "-c"])
    assert "# Chr" in run(capsys, *files, "-i", "rm", "-c", "-e", "utf-8")


def test_exit_status_and_message(files, tmp_path):
    command = [sys.executable, "-m", "espnet_medusa.bin.sclite", *files, "-i", "rm"]
    (tmp_path / "hyp.trn").write_text("a (s-1)\n", encoding="utf-8")
    stopped = subprocess.run(command, capture_output=True, text=True)
    assert (stopped.returncode, stopped.stdout, stopped.stderr.count("\n")) == (1, "", 1)
    assert "s-2" in stopped.stderr
    accepted = subprocess.run([*command, "--allow_missing", "true"], capture_output=True, text=True)
    assert accepted.returncode == 0
    assert "| Sum/Avg|    2      4 | 25.0    0.0   75.0 " in accepted.stdout
    (tmp_path / "ref.trn").unlink()
    absent = subprocess.run(command, capture_output=True, text=True)
    assert (absent.returncode, absent.stderr.count("\n")) == (1, 1)
    assert "ref.trn" in absent.stderr
