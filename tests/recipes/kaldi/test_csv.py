"""CSV files with aiola's columns: converted to data directories, and results added to them."""

import csv

import pytest
import soundfile
from cases import cases
from refusals import exit_status, refuses
from tones import RATE_HZ, tone

from espnet_medusa.bin.stage import main
from espnet_medusa.data.kaldi.data_dir import validate_data_dir
from espnet_medusa.data.kaldi.table import read_table, write_table
from espnet_medusa.recipes.kaldi.csv_import import read_csv


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "audio").mkdir()
    for name in ("a", "b c"):
        soundfile.write(tmp_path / "audio" / f"{name}.wav", tone(300, 0.1), RATE_HZ)
    return tmp_path


def write_csv(folder, *lines, encoding="utf-8"):
    path = folder / "set.csv"
    path.write_bytes(b"".join(f"{line}\n".encode(encoding) for line in lines))
    return path


def convert(command, *arguments):
    return exit_status(main, command, *arguments)


def read_rows(path):
    with open(path, encoding="utf-8", newline="") as stream:
        return [*csv.DictReader(stream)]


def test_columns_become_tables(corpus, capsys):
    path = write_csv(
        corpus,
        "\ufeffaudio,sentence,language,regulation-start,regulation-factor,note",
        'audio/a.wav,"well, he said ""no""",en,140,1.01,x',
        f"{corpus}/audio/b c.wav,  guten   Tag ,German,140,1.01,",
        "",
        '"audio/a.wav","the same\naudio",,140,1.01,',
    )
    data = corpus / "data"
    assert convert("csv_to_data_dir", path, data, "--language", "fr") == 0
    keys = ["000001-a", "000002-b_c", "000003-a"]
    wav, other = f"{corpus}/audio/a.wav", f"{corpus}/audio/b c.wav"
    assert read_table(data / "wav.scp") == dict(zip(keys, [wav, other, wav], strict=True))
    texts = ['well, he said "no"', "guten Tag", "the same audio"]
    assert read_table(data / "text") == dict(zip(keys, texts, strict=True))
    assert read_table(data / "utt2lang") == dict(zip(keys, ["en", "de", "fr"], strict=True))
    assert read_table(data / "utt2regulation") == dict.fromkeys(keys, "140 1.01")
    assert validate_data_dir(data) == []
    assert "--exponential_decay_length_penalty 140 1.01" in capsys.readouterr().err


def test_optional_columns_may_be_absent(corpus):
    path = write_csv(corpus, "sentence,audio", "one,audio/a.wav")
    assert convert("csv_to_data_dir", path, corpus / "data") == 0
    names = {file.name for file in (corpus / "data").iterdir()} - {".stamp.json"}
    assert names == {"wav.scp", "text", "utt2spk", "spk2utt"}
    assert validate_data_dir(corpus / "data") == []
    write_table(corpus / "results" / "text", {"000001-a": ""})
    assert convert("results_to_csv", path, corpus / "results", corpus / "out.csv") == 0
    assert (corpus / "out.csv").read_text().splitlines()[1] == "one,audio/a.wav,,1,1,"


@cases(
    ("audio/no.wav,one,en,,", ["audio: ", "no.wav", "correct the path"]),
    (",one,en,,", ["audio: is empty"]),
    ("touch gone |,one,en,,", ["audio: touch gone |: is no path"]),
    ("~/a.wav,one,en,,", ["'~' is not expanded"]),
    ("audio/a.wav,  ,en,,", ["sentence: is empty"]),
    ("audio/a.wav,<|endoftext|> one,en,,", ["sentence: has reserved symbols"]),
    ("audio/a.wav,one,klingon,,", ["language: 'klingon'", "give a code"]),
    ("audio/a.wav,one,en,140,", ["regulation-factor: ''", "or neither"]),
    ("audio/a.wav,one,en,1.5,1.01", ["regulation-start: '1.5'", "whole number of 0"]),
    ("audio/a.wav,one,en,1,nan", ["regulation-factor: 'nan'"]),
    ("audio/a.wav,one, two,en,,", ["has 6 values for 5 columns", "put quotes"]),
    ("audio/a.wav,one", ["has 2 values for 5 columns"]),
    ('audio/a.wav,"one"x,en,,', ["is no CSV", "put quotes"]),
)
def test_bad_row_is_reported_and_the_others_converted(row, parts, corpus, capsys):
    header = "audio,sentence,language,regulation-start,regulation-factor"
    path = write_csv(corpus, header, "audio/a.wav,first,en,,", row, "audio/a.wav,last,en,,")
    assert convert("csv_to_data_dir", path, corpus / "data") == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{path}: line 3: ")
    assert [part for part in parts if part not in line] == []
    assert read_table(corpus / "data" / "text") == {"000001-a": "first", "000003-a": "last"}


def test_a_row_that_is_not_utf8_is_skipped(corpus, capsys):
    path = write_csv(corpus, "audio,sentence", "audio/a.wav,na\xefve", encoding="latin-1")
    path.write_bytes(path.read_bytes() + "audio/a.wav,naïve\n".encode())
    assert convert("csv_to_data_dir", path, corpus / "data") == 3
    assert "line 2: sentence: is not UTF-8: na\ufffdve; convert" in capsys.readouterr().out
    assert read_table(corpus / "data" / "text") == {"000002-a": "naïve"}


def test_unclosed_quote_is_reported_at_its_start(corpus):
    path = write_csv(corpus, "audio,sentence", "audio/a.wav,one", 'audio/a.wav,"two', "x,y")
    _, rows = read_csv(path)
    assert [row.problem is None for row in rows] == [True, False]
    assert "line 3: is no CSV (unexpected end of data)" in str(rows[1].problem)


@refuses(
    ([], "is empty"),
    (["audio;sentence"], "no column audio and sentence; the columns found: audio;sentence"),
    (["audio,language"], "no column sentence"),
    (["audio,sentence,audio"], "column 'audio' occurs twice"),
    (['audio,"more', 'or less"'], "the columns found: audio, more or less;"),
    (["audio,sentence,caf\xe9", "a.wav,one,x"], "line 1: is not UTF-8: convert .* iconv"),
)
def test_bad_header_is_refused(lines, corpus):
    read_csv(write_csv(corpus, *lines, encoding="latin-1"))


def test_without_usable_rows_nothing_is_written(corpus, capsys):
    path = write_csv(corpus, "audio,sentence", "audio/no.wav,one")
    assert convert("csv_to_data_dir", path, corpus / "data") == 1
    lines = capsys.readouterr().err.splitlines()
    assert "line 2: audio" in lines[0] and "has no usable row" in lines[1]
    assert not (corpus / "data").exists()


def test_an_output_is_not_replaced_if_the_input_is_in_it(corpus, capsys):
    path = write_csv(corpus, "audio,sentence", "audio/a.wav,one")
    output = corpus / "data"
    assert convert("csv_to_data_dir", path, output) == 0
    inside = output / "more.csv"
    inside.write_text("audio,sentence\n../audio/a.wav,two\n")
    assert convert("csv_to_data_dir", inside, output) == 1
    assert "it would replace the input" in capsys.readouterr().err
    assert inside.is_file() and read_table(output / "text") == {"000001-a": "one"}


@pytest.fixture
def decoded(corpus):
    """A CSV file of five rows: two decoded, one failed, one bad, one not decoded."""
    path = write_csv(
        corpus,
        "id,sentence,audio,language",
        '7,"One, two three four",audio/a.wav,en',
        "8,abcd,audio/b c.wav,en",
        "9,gone,audio/a.wav,en",
        "10,bad,audio/no.wav,en",
        "11,lost,audio/a.wav,en",
    )
    assert convert("csv_to_data_dir", path, corpus / "data") == 3
    results = corpus / "results"
    write_table(results / "text", {"000001-a": "one two tree four five", "000002-b_c": "abed"})
    write_table(results / "failed_utterances", {"000003-a": "too long"})
    return path, results, corpus / "out.csv"


def test_every_row_is_written_with_its_error_rates(decoded, capsys):
    path, results, output = decoded
    capsys.readouterr()
    assert convert("results_to_csv", path, results, output, "--cleaner", "whisper_basic") == 3
    rows = read_rows(output)
    assert ",".join(rows[0]) == "id,sentence,audio,language,prediction,wer,cer,error"
    assert [row["id"] for row in rows] == ["7", "8", "9", "10", "11"]
    assert rows[0]["sentence"] == "One, two three four"
    # A word wrong and one too many of 4; «h» deleted and « five» inserted of 18 characters.
    assert (rows[0]["prediction"], rows[0]["wer"]) == ("one two tree four five", "0.5")
    assert float(rows[0]["cer"]) == pytest.approx(6 / 18, abs=1e-5)
    assert (rows[1]["wer"], rows[1]["cer"], rows[1]["error"]) == ("1", "0.25", "")
    assert [row["error"] for row in rows[2:]] == ["too long", *["no hypothesis; not decoded"] * 2]
    assert all((row["prediction"], row["wer"]) == ("", "") for row in rows[2:])
    printed = capsys.readouterr()
    assert f"{path}: line 4: no hypothesis: too long" in printed.out
    assert "5 rows, 3 without hypothesis WER 60.00% CER 31.82%" in printed.err


def test_any_white_space_separates_words(corpus):
    path = write_csv(corpus, "audio,sentence", 'audio/a.wav,"one\ntwo\t three"')
    write_table(corpus / "results" / "text", {"000001-a": "one two\u3000three"})
    assert convert("results_to_csv", path, corpus / "results", corpus / "out.csv") == 0
    (row,) = read_rows(corpus / "out.csv")
    assert (row["wer"], row["cer"]) == ("0", "0")


def test_rows_that_cannot_be_parsed_are_written_too(corpus):
    path = write_csv(corpus, "audio,sentence", "audio/a.wav,one, two", 'audio/a.wav,"x"y')
    write_table(corpus / "results" / "text", {})
    assert convert("results_to_csv", path, corpus / "results", corpus / "out.csv") == 3
    rows = read_rows(corpus / "out.csv")
    assert rows[0]["sentence"] == "one, two", "nothing is lost"
    assert "line 2: has 3 values for 2 columns" in rows[0]["error"]
    assert "line 3: is no CSV" in rows[1]["error"]


def test_results_of_another_csv_and_existing_columns_are_refused(decoded, capsys):
    path, results, output = decoded
    write_table(results / "text", {"000009-z": "x"})
    assert convert("results_to_csv", path, results, output) == 1
    assert "does not have: " in capsys.readouterr().err
    path = write_csv(path.parent, "audio,sentence,wer", "audio/a.wav,one,0")
    assert convert("results_to_csv", path, results, output) == 1
    assert "has a column wer, which the results add" in capsys.readouterr().err
    assert not output.exists()


def test_words_without_a_sentence_are_insertions(corpus, capsys):
    path = write_csv(corpus, "audio,sentence", "audio/a.wav,one two", "audio/a.wav,")
    assert convert("csv_to_data_dir", path, corpus / "data", "--allow_empty_text", "true") == 0
    assert read_table(corpus / "data" / "text", require_value=False)["000002-a"] == ""
    write_table(corpus / "results" / "text", {"000001-a": "one two", "000002-a": "thank you"})
    assert convert("results_to_csv", path, corpus / "results", corpus / "out.csv") == 0
    assert read_rows(corpus / "out.csv")[1]["error"] == "the sentence is empty; insertions: 2"
    assert "WER 100.00%" in capsys.readouterr().err
