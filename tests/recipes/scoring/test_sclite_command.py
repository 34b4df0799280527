"""The command: reports equal NIST sclite's output byte for byte; arguments, files, exit status."""

import random
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import cases
from refusals import assert_refused, command_refused, refused

from espnet_medusa.bin.sclite import main
from espnet_medusa.recipes.scoring.sclite_report import spread

GOLDEN = sorted(path.parent for path in Path(__file__).parent.glob("golden/*/result.txt"))
assert len(GOLDEN) >= 13
REAL_SCLITE = ["sclite"] if shutil.which("sclite") else ["sctk", "sclite"]
needs_sclite = pytest.mark.skipif(
    shutil.which(REAL_SCLITE[0]) is None, reason="NIST sclite is not installed (Debian: sctk)"
)


def write_pair(folder: Path, *texts: str) -> list[str]:
    for name, text in zip(("ref.trn", "hyp.trn"), texts, strict=True):
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return file_arguments(folder)


def file_arguments(folder: Path) -> list[str]:
    return ["-r", f"{folder}/ref.trn", "trn", "-h", f"{folder}/hyp.trn", "trn"]


@pytest.fixture
def files(tmp_path):
    return [*write_pair(tmp_path, "a b c (s-1)\nD (s-2)\n", "a x c (s-1)\nd (s-2)\n"), "hyp"]


@pytest.fixture
def run(capfdbinary):
    def run(*arguments: str) -> bytes:
        main([*arguments])
        return capfdbinary.readouterr().out

    return run


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_equals_golden_output(folder, run):
    arguments = shlex.split((folder / "arguments.txt").read_text(encoding="utf-8"))
    assert run(*file_arguments(folder), *arguments) == (folder / "result.txt").read_bytes()


def random_pair(rng: random.Random) -> tuple[str, str]:
    words = ["a", "b", "C", "d", "é", "東京", "it's", "x*", ";", "a;b", "(", "}", "\xa0", "@"]
    vocabulary = rng.sample(words, 8)
    longest = rng.choice([2, 10, 40, 400])
    reference, hypothesis = [], []
    for speaker in range(rng.choice([1, 2, 5, 60 if longest < 40 else 3])):
        silent = rng.random() < 0.2
        for number in range(rng.randint(1, 4)):
            name = f"(S{speaker}é-{number})\n"
            words = rng.choices(vocabulary, k=0 if silent else rng.randint(0, longest))
            spoken = [
                output
                for word in words
                for output in rng.choice([[word]] * 6 + [[], ["a"], [word, rng.choice(vocabulary)]])
            ]
            # A blank in front: a line that starts with ; or * looks like a comment to sclite.
            reference.append(f" {' '.join(words)}\t{name}")
            hypothesis.append(f" {' '.join(spoken or ['b'] * rng.randint(0, 1))}\t{name}")
    rng.shuffle(hypothesis)
    return "".join(reference), "".join(hypothesis)


@needs_sclite
@pytest.mark.parametrize("seed", range(16))
def test_equals_the_real_program_on_random_pairs(seed, tmp_path, run):
    rng = random.Random(seed)
    arguments = write_pair(tmp_path, *random_pair(rng))
    arguments += ["t" * rng.randint(1, 120), "-i", rng.choice(["rm", "spu_id", "swb", "sp"])]
    arguments += ["-o", "all", "stdout", "-e", "utf-8", "-l", rng.choice(["150", "1000"])]
    arguments += rng.choice([[], ["-s"], ["-c"], ["-c", "NOASCII"]])
    expected = subprocess.run([*REAL_SCLITE, *arguments], capture_output=True, check=True).stdout
    assert run(*arguments) == expected


@needs_sclite
def test_real_program_on_request(tmp_path, run):
    files = write_pair(tmp_path, "{a / b} c (s-1)\nd (s-2)\ne f (s-3)", "d (s-2)\nb c (s-1)")
    real = ["--sclite", " ".join(REAL_SCLITE), "-i", "rm", "-o", "all", "stdout"]
    assert_refused("s-3", run, *files, *real, error=SystemExit)
    printed = run(*files, *real, "--allow_missing", "true").decode()
    assert f"System name:   {tmp_path}/hyp.trn" in printed
    assert "Scores: (#C #S #D #I) 0 0 2 0\nREF:  E F \nHYP:  * * " in printed
    assert "REF:  b c \nHYP:  b c " in printed
    run(*files, "mine", *real[:4], "-o", "rsum", "-n", "mine", "--allow_missing", "true")
    written = (tmp_path / "mine.raw").read_text(encoding="utf-8")
    assert "| Sum  |    3      5 |    3      0      2      0      2      1 |" in written


def test_words_longer_than_sclites_row_of_stars_and_than_a_line(tmp_path, run):
    """sclite has only 40 stars and then prints other memory; ours prints enough stars."""
    files = write_pair(tmp_path, f"a {'w' * 130} (s-1)\n", "a (s-1)\n")
    printed = run(*files, "-i", "rm", "-o", "pra", "stdout").decode()
    assert f"REF:  a {'W' * 130} \nHYP:  a {'*' * 130} \nEval:   D{' ' * 129} \n" in printed
    files = write_pair(tmp_path, f"a {'w' * 99} b (s-1)\n", "a b (s-1)\n")
    assert run(*files, "-i", "rm", "-o", "pra", "stdout", "-l", "20").count(b"REF:") == 3


def test_spread():
    assert spread([]) == (0, 0, 0)
    assert spread([4]) == (4, 0, 4)
    assert spread([1, 3, 8, 4]) == (4, pytest.approx((26 / 3) ** 0.5), 3.5)


@cases(
    ([], ["| Sum/Avg|    2      4 | 75.0   25.0    0.0    0.0   25.0   50.0 |"], "DUMP"),
    (["-o", "all", "sum", "-o", "stdout"], ["| Sum  |", "DUMP OF SYSTEM"], "Sum/Avg"),
    (["-o", "all", "stdout", "-s"], ["Case_sensitve", "| 50.0   50.0 "], "75.0"),
)
def test_reports_on_request(options, expected, absent, files, run):
    printed = run(*files, "-i", "rm", *options).decode()
    assert all(text in printed for text in expected) and absent not in printed
    assert printed.count("Sum/Avg") <= 1


def test_reports_of_several_hypotheses_and_to_files(files, tmp_path, run):
    printed = run(*files[:6], "first", *files[3:6], "second", "-i", "rm")
    assert printed.count(b"Sum/Avg") == 2
    assert printed.index(b" first ") < printed.index(b" second ")
    assert run(*files, "-i", "rm", "-o", "all") == b""
    (tmp_path / "out").mkdir()
    run(*files, "-i", "rm", "-o", "sum", "-O", str(tmp_path / "out"), "-n", "best")
    for name, text in {
        "hyp.trn.sys": "Sum/Avg",
        "hyp.trn.raw": "| Sum  |",
        "hyp.trn.pra": "id: (s-1)",
        "out/best.sys": "Sum/Avg",
    }.items():
        assert text in (tmp_path / name).read_text(encoding="utf-8")
    assert not (tmp_path / "out" / "best.raw").exists()


@cases(
    (["-o", "dtl"], ["dtl", "sum, rsum, pralign"]),
    (["-c", "DH"], ["DH", "NOASCII"]),
    (["--sclite", "/no/such/program"], ["/no/such/program"]),
    (["--sclite", f"{sys.executable} -c exit(3)"], ["status 3"]),
    (["-O", "/no/such/folder", "-o", "sum"], ["/no/such/folder"]),
    (["-r", "/no/such/ref.trn"], ["/no/such/ref.trn"]),
    (["-r", "ref.stm", "stm"], ["-r: format 'stm' is not supported; use trn"]),
    (["-h", "hyp.ctm", "ctm"], ["-h: format 'ctm'"]),
)
def test_errors_are_one_line(arguments, words, files):
    with refused(*words, error=SystemExit) as caught:
        main([*files, "-i", "rm", *arguments])
    assert isinstance(caught.value.code, str)  # Python prints it and exits with status 1.


@cases(
    (["-i", "atis"], ["atis", "'rm'"]),
    (["-i", "rm", "-F"], ["-F", "supported:", "-r -h -i -o"]),
    (["-i", "rm", "-e", "gb"], ["gb", "utf-8"]),
    (["-i", "rm", "--allow_missing", "maybe"], ["maybe", "true and false"]),
    ([], ["-i"]),
)
def test_unknown_arguments_are_refused(arguments, words, files, capsys):
    with command_refused(capsys, *words, status=2):
        main([*files, *arguments])


def test_characters_of_other_scripts_need_their_encoding(files, tmp_path, run):
    write_pair(tmp_path, "a b c (s-1)\n", "東 (s-1)\n")
    assert_refused("-e utf-8", main, [*files, "-i", "rm", "-c"], error=SystemExit)
    assert b"# Chr" in run(*files, "-i", "rm", "-c", "-e", "utf-8")


def test_a_missing_hypothesis_is_named_or_counted(files, tmp_path, run):
    (tmp_path / "hyp.trn").write_text("a (s-1)\n", encoding="utf-8")
    assert_refused("s-2", run, *files, "-i", "rm", error=SystemExit)
    printed = run(*files, "-i", "rm", "--allow_missing", "true")
    assert b"| Sum/Avg|    2      4 | 25.0    0.0   75.0 " in printed
