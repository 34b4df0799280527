"""Reports equal NIST sclite's output, byte for byte."""

import random
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from espnet_medusa.bin.sclite import main
from espnet_medusa.scoring.box_table import TableRow, box_table
from espnet_medusa.scoring.report import Spread, spread

GOLDEN = sorted(path.parent for path in Path(__file__).parent.glob("golden/*/result.txt"))
REAL_SCLITE = ["sclite"] if shutil.which("sclite") else ["sctk", "sclite"]
needs_sclite = pytest.mark.skipif(
    shutil.which(REAL_SCLITE[0]) is None, reason="NIST sclite is not installed (Debian: sctk)"
)


@pytest.fixture
def report(capfdbinary):
    """Run the command and return its standard output."""

    def run(folder: Path, arguments: list[str]) -> bytes:
        main(["-r", f"{folder}/ref.trn", "trn", "-h", f"{folder}/hyp.trn", "trn", *arguments])
        return capfdbinary.readouterr().out

    return run


def test_there_are_golden_files():
    assert len(GOLDEN) >= 13


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_equals_golden_output(folder, report):
    arguments = shlex.split((folder / "arguments.txt").read_text(encoding="utf-8"))
    assert report(folder, arguments) == (folder / "result.txt").read_bytes()


def write_pair(folder: Path, reference: str, hypothesis: str) -> None:
    (folder / "ref.trn").write_text(reference, encoding="utf-8", newline="\n")
    (folder / "hyp.trn").write_text(hypothesis, encoding="utf-8", newline="\n")


def write_random_pair(folder: Path, rng: random.Random) -> None:
    words = ["a", "b", "C", "d", "é", "東京", "it's", "x*", ";", "a;b", "(", "}", "\xa0", "@"]
    vocabulary = rng.sample(words, 8)
    longest = rng.choice([2, 10, 40, 400])
    reference, hypothesis = [], []
    for speaker in range(rng.choice([1, 2, 5, 60 if longest < 40 else 3])):
        silent = rng.random() < 0.2
        for number in range(rng.randint(1, 4)):
            name = f"(S{speaker}é-{number})\n"
            words = [
                rng.choice(vocabulary) for _ in range(0 if silent else rng.randint(0, longest))
            ]
            spoken = [
                output
                for word in words
                for output in rng.choice([[word]] * 6 + [[], ["a"], [word, rng.choice(vocabulary)]])
            ]
            # A blank in front: a line that starts with ; or * looks like a comment to sclite.
            reference.append(f" {' '.join(words)}\t{name}")
            hypothesis.append(f" {' '.join(spoken or ['b'] * rng.randint(0, 1))}\t{name}")
    rng.shuffle(hypothesis)
    write_pair(folder, "".join(reference), "".join(hypothesis))


@needs_sclite
@pytest.mark.parametrize("seed", range(16))
def test_equals_the_real_program_on_random_pairs(seed, tmp_path, report):
    rng = random.Random(seed)
    write_random_pair(tmp_path, rng)
    arguments = ["t" * rng.randint(1, 120), "-i", rng.choice(["rm", "spu_id", "swb", "sp"])]
    arguments += ["-o", "all", "stdout", "-e", "utf-8", "-l", rng.choice(["150", "1000"])]
    arguments += rng.choice([[], ["-s"], ["-c"], ["-c", "NOASCII"]])
    files = ["-r", f"{tmp_path}/ref.trn", "trn", "-h", f"{tmp_path}/hyp.trn", "trn"]
    expected = subprocess.run([*REAL_SCLITE, *files, *arguments], capture_output=True, check=True)
    assert report(tmp_path, arguments) == expected.stdout


@needs_sclite
def test_real_program_on_request(tmp_path, report):
    write_pair(tmp_path, "{a / b} c (s-1)\nd (s-2)\ne f (s-3)", "d (s-2)\nb c (s-1)")
    real = ["--sclite", " ".join(REAL_SCLITE), "-i", "rm", "-o", "all", "stdout"]
    with pytest.raises(SystemExit, match="s-3"):
        report(tmp_path, real)
    printed = report(tmp_path, [*real, "--allow_missing", "true"]).decode()
    assert f"System name:   {tmp_path}/hyp.trn" in printed
    assert "Scores: (#C #S #D #I) 0 0 2 0\nREF:  E F \nHYP:  * * " in printed
    assert "REF:  b c \nHYP:  b c " in printed
    report(tmp_path, ["mine", *real[:4], "-o", "rsum", "-n", "mine", "--allow_missing", "true"])
    written = (tmp_path / "mine.raw").read_text(encoding="utf-8")
    assert "| Sum  |    3      5 |    3      0      2      0      2      1 |" in written


def test_words_too_long_for_sclites_row_of_stars(tmp_path, report):
    """sclite has only 40 stars and then prints other memory; ours prints enough stars."""
    word = "w" * 130
    write_pair(tmp_path, f"a {word} (s-1)\n", "a (s-1)\n")
    lines = report(tmp_path, ["-i", "rm", "-o", "pra", "stdout"]).decode().split("\n")
    assert f"REF:  a {word.upper()} " in lines
    assert f"HYP:  a {'*' * 130} " in lines
    assert f"Eval:   D{' ' * 129} " in lines


def test_a_word_longer_than_the_line_ends(tmp_path, report):
    write_pair(tmp_path, f"a {'w' * 99} b (s-1)\n", "a b (s-1)\n")
    printed = report(tmp_path, ["-i", "rm", "-o", "pra", "stdout", "-l", "20"]).decode()
    assert printed.count("REF:") == 3


def test_spread():
    assert spread([]) == Spread(0, 0, 0)
    assert spread([4]) == Spread(4, 0, 4)
    assert spread([1, 3, 8, 4]) == Spread(4, pytest.approx((26 / 3) ** 0.5), 3.5)


def test_box_table():
    rows = [TableRow(("Name", "n", "m"), rule="-"), TableRow((" é ", "10", "5"), rule="-")]
    assert [line.strip() for line in box_table("a title//in two lines", rows).splitlines()] == [
        ",------------.",
        "|  a title   |",
        "|in two lines|",
        "|------------|",
        "|Name |n   m |",
        "|-----+------|",
        "| é  |10  5 |",  # two bytes in é
        "`------------'",
    ]
