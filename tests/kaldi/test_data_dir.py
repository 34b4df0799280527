import subprocess
import sys

import pytest
from downloads import tree
from refusals import command_refused
from tones import edit

from espnet_medusa import stages
from espnet_medusa.kaldi.data_dir import validate_data_dir
from espnet_medusa.kaldi.fix import fix_data_dir
from espnet_medusa.kaldi.table import DataError, read_table, write_table

FIRST, SECOND = "s0-u000", "s0-u002"


def test_valid_directory_has_no_problems(make_data_dir):
    assert validate_data_dir(make_data_dir()) == []


def drop_line(key):
    return lambda text: "".join(line for line in text.splitlines(True) if key not in line)


def reverse_lines(text):
    return "".join(reversed(text.splitlines(True)))


@pytest.mark.parametrize(
    "table, change, key, message",
    [
        ("text", drop_line(FIRST), FIRST, "is missing (it is in wav.scp)"),
        ("utt2spk", drop_line(FIRST), FIRST, "is missing (it is in wav.scp)"),
        ("wav.scp", drop_line(FIRST), FIRST, "is not in wav.scp"),
        ("text", lambda text: text + "zz new\n", "zz", "is not in wav.scp"),
        ("text", lambda text: text.replace("word 0", ""), FIRST, "has no value"),
        ("text", lambda text: text.replace("word 0", "a </s>"), FIRST, "reserved symbols: </s>"),
        ("text", lambda text: text.replace("word 0", "<|endoftext|>"), FIRST, "reserved"),
        ("text", lambda text: text + text.splitlines(True)[0], FIRST, "occurs again in line 5"),
        ("text", lambda text: text[:-1], "", "no newline"),
        ("text", lambda text: "", "", "is empty"),
        ("wav.scp", reverse_lines, "s1-u001", "out of byte order"),
        ("wav.scp", lambda text: text.replace(f"{FIRST}.wav", "no.wav"), FIRST, "no readable file"),
        ("wav.scp", lambda text: text.replace("wav\n", "wav |\n", 1), FIRST, "is a command"),
        ("wav.scp", lambda text: text.replace(" /", " ~/", 1), FIRST, "'~' is not expanded"),
        ("utt2spk", lambda text: text.replace("s0\n", "s0 s1\n", 1), FIRST, "more than one"),
        ("spk2utt", lambda text: text.replace(f" {FIRST}", ""), "s0", "disagrees with utt2spk"),
        ("spk2utt", drop_line("s1 "), "s1", "disagrees with utt2spk"),
    ],
)
def test_each_defect_is_reported(make_data_dir, table, change, key, message):
    folder = make_data_dir()
    edit(folder / table, change)
    problems = validate_data_dir(folder)
    assert any(problem.id == key and message in problem.message for problem in problems), problems
    for problem in problems:
        assert problem.remedy and "\n" not in str(problem)
        assert str(problem).startswith(str(folder))


def test_unreadable_line_is_one_problem(make_data_dir):
    folder = make_data_dir()
    path = folder / "text"
    path.write_bytes(path.read_bytes().replace(b"word 0", b"caf\xe9"))
    problems = validate_data_dir(folder)
    assert [(problem.id, "UTF-8" in problem.message) for problem in problems] == [(FIRST, True)]


def test_speaker_must_be_a_prefix_by_default(make_data_dir, capsys):
    folder = make_data_dir()
    speakers = read_table(folder / "utt2spk")
    speakers[FIRST] = "z"
    write_table(folder / "utt2spk", speakers)
    fix_data_dir(folder)
    with command_refused(capsys, "make the speaker a prefix"):
        stages.main(["validate_data_dir", str(folder)])
    stages.main(["validate_data_dir", str(folder), "--speaker_order", "false"])


@pytest.mark.parametrize(
    "value, message",
    [
        ("rec 0.5 0.5", "not after its start"),
        ("rec 0.5", "has 3 fields"),
        ("rec a b", "no numbers"),
        ("rec 0 nan", "impossible"),
        ("rec -1 1", "impossible"),
        ("other 0 1", "recording other is not in wav.scp"),
    ],
)
def test_segments_are_checked(make_data_dir, value, message):
    folder = make_data_dir(1)
    path = read_table(folder / "wav.scp")[FIRST]
    write_table(folder / "wav.scp", {"rec": path, "unused": path})
    write_table(folder / "segments", {FIRST: value})
    messages = {problem.id: problem.message for problem in validate_data_dir(folder)}
    assert message in messages[FIRST]
    assert "no segment uses" in messages["unused"]
    write_table(folder / "wav.scp", {"rec": path})
    write_table(folder / "segments", {FIRST: "rec 0.05 -1"})
    assert validate_data_dir(folder) == []


def test_fix_keeps_the_intersection_and_reports_the_rest(make_data_dir):
    folder = make_data_dir(6)
    edit(folder / "text", lambda text: text.replace("word 0", "") + "lost words\n")
    edit(folder / "wav.scp", reverse_lines)
    edit(folder / "utt2spk", lambda text: text + f"{SECOND} other\ns1-u001 s1\n")
    (folder / "spk2utt").unlink()
    report = fix_data_dir(folder)
    assert validate_data_dir(folder) == []
    assert {problem.id for problem in report.dropped} == {FIRST, SECOND, "lost"}
    assert report.n_kept == 4 == len(read_table(folder / "wav.scp"))
    assert report.generated == ["spk2utt"]
    assert read_table(folder / "spk2utt")["s1"] == "s1-u001 s1-u003 s1-u005"
    assert "lost" in (folder / ".backup" / "text").read_text()


def test_fix_makes_every_utterance_a_speaker_without_utt2spk(make_data_dir):
    folder = make_data_dir()
    (folder / "utt2spk").unlink()
    (folder / "spk2utt").unlink()
    assert fix_data_dir(folder).generated == ["utt2spk", "spk2utt"]
    assert read_table(folder / "utt2spk")[FIRST] == FIRST
    assert validate_data_dir(folder) == []


def test_fix_drops_recordings_without_segments(make_data_dir):
    folder = make_data_dir(2)
    path = read_table(folder / "wav.scp")[FIRST]
    write_table(folder / "wav.scp", {"rec": path, "unused": path})
    write_table(folder / "segments", {FIRST: "rec 0 0.1", "s1-u001": "rec 0.2 0.1"})
    report = fix_data_dir(folder)
    assert list(read_table(folder / "wav.scp")) == ["rec"]
    assert {problem.id for problem in report.dropped} == {"s1-u001", "unused"}
    assert validate_data_dir(folder) == []


def test_fix_changes_nothing_when_nothing_would_be_left(make_data_dir):
    folder = make_data_dir()
    edit(folder / "text", lambda text: text.replace("s", "x"))
    before = tree(folder)
    with pytest.raises(DataError, match="no utterance is in all"):
        fix_data_dir(folder)
    assert before == tree(folder)


def test_command_exits_with_1_and_prints_all_problems(make_data_dir):
    folder = make_data_dir()
    edit(folder / "text", lambda text: text.replace("word 0", "").replace("word 2", "<s>"))
    run = [sys.executable, "-m", "espnet_medusa.stages", "validate_data_dir", str(folder)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 2


def test_command_fixes_and_then_succeeds(make_data_dir, capsys):
    folder = make_data_dir()
    edit(folder / "text", lambda text: text.replace("word 0", ""))
    stages.main(["validate_data_dir", str(folder), "--fix", "true"])
    printed = capsys.readouterr()
    assert f"{FIRST}: has no value; dropped" in printed.out
    assert "kept 3 utterances" in printed.err


def test_missing_text_needs_an_option(make_data_dir, capsys):
    folder = make_data_dir()
    (folder / "text").unlink()
    with command_refused(capsys, f"{folder}/text"):
        stages.main(["validate_data_dir", str(folder)])
    stages.main(["validate_data_dir", str(folder), "--require_text", "false"])
