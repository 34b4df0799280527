"""Scoring of a test set: files, joining by id, cleaners."""

import json

import pytest
import warm_python
from cases import cases
from refusals import command_refused

from espnet_medusa.bin import stage
from espnet_medusa.decoding.search.statistics import DecodingStatistics, write_statistics
from espnet_medusa.recipes.score import ScoreOptions, sclite_command, words_by_utterance
from espnet_medusa.recipes.scoring.box_table import parse_sum
from espnet_medusa.recipes.tokens import TokenOptions, make_token_list


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", warm_python.executable())  # of our sclite
    data, output = tmp_path / "data", tmp_path / "out"
    for folder in (data, output):
        folder.mkdir()
    (data / "text").write_text("s1-a one two three\ns1-b four five\ns2-c six\n")
    (data / "utt2spk").write_text("s1-a s1\ns1-b s1\ns2-c s2\n")
    (output / "text").write_text("s1-a one two tree\ns1-b four five\ns2-c six\n")
    return data, output


def run_score(folders, *options):
    data, output = folders
    stage.main(["score", "--data_dir", str(data), "--output_dir", str(output), *options])


def row_of(folders, rate="wer"):
    return parse_sum(folders[1] / f"score_{rate}" / "result.txt")


def test_folders_and_totals(folders, capsys):
    run_score(folders)
    output, wer, cer = folders[1], row_of(folders, "wer"), row_of(folders, "cer")
    assert (wer.sentences, wer.words, wer.err) == ("3", "6", "16.7")
    # 25 characters, blanks between words included; one is missing.
    assert (cer.words, cer.deleted) == ("25", "4.0")
    assert not (output / "score_ter").exists()
    assert "WER 16.7, CER 4.0" in capsys.readouterr().out
    lines = (output / "score_wer" / "ref.trn").read_text().splitlines()
    assert lines[0] == "one two three\t(s1-s1-a)"
    assert "<space>" in (output / "score_cer" / "hyp.trn").read_text()


def test_statistics_get_eta(folders):
    calls = {"s1-a": 6, "s1-b": 2}
    written = {key: DecodingStatistics(decoder_calls=count) for key, count in calls.items()}
    write_statistics(folders[1] / "statistics.json", written)
    (folders[1] / "text").write_text("s1-a one two\ns1-b four five\n")
    run_score(folders, "--allow_missing", "true")
    report = json.loads((folders[1] / "statistics.json").read_text())
    assert report["utterances"]["s1-a"]["eta"] == 2 * 6 / (3 + 2)
    assert report["utterances"]["s1-b"]["eta"] == 2 * 2 / (2 + 2)
    # The words of an utterance that was not decoded took no calls: they do not count.
    assert report["set"]["eta"] == 2 * 8 / ((3 + 2) + (2 + 2))


def test_the_tokenizer_is_that_of_the_experiment(folders, tmp_path, capsys):
    options = TokenOptions("bpe", nbpe=18)
    make_token_list([folders[0] / "text"], tmp_path / "bpe" / "tokens.txt", options)
    config = tmp_path / "config.yaml"
    config.write_text("token_type: char\nbpemodel: null\n")
    run_score(folders, "--asr_train_config", str(config))
    assert not (folders[1] / "score_ter").exists()
    config.write_text(f"token_type: bpe\nbpemodel: {tmp_path}/bpe/bpe.model\n")
    run_score(folders, "--asr_train_config", str(config))
    expected = (folders[1] / "score_ter" / "result.txt").read_bytes()
    config.write_text("token_type: bpe\nbpemodel: data/gone.model\n")
    run_score(folders, "--asr_train_config", str(config), "--bpemodel", f"{tmp_path}/bpe/bpe.model")
    assert (folders[1] / "score_ter" / "result.txt").read_bytes() == expected
    assert float(row_of(folders, "ter").err) > 0
    with command_refused(capsys, f"data/gone.model: no such file ({config} names it)"):
        run_score(folders, "--asr_train_config", str(config))


def test_a_missing_hypothesis_is_named_or_counts_as_deletions(folders, capsys):
    (folders[1] / "text").write_text("s1-a one two three\n")
    with command_refused(capsys, "for 2 utterances: s1-b, s2-c", "--allow_missing true"):
        run_score(folders)
    assert not (folders[1] / "score_wer").exists()
    run_score(folders, "--allow_missing", "true")
    row = row_of(folders)
    assert (row.sentences, row.deleted, row.err) == ("3", "50.0", "50.0")


def test_order_does_not_matter_but_a_reference_must_exist(folders, capsys):
    text = "s2-c six\ns1-b four five\ns1-a one two three\n"
    (folders[1] / "text").write_text(text)
    run_score(folders)
    assert row_of(folders).err == "0.0"
    (folders[1] / "text").write_text(f"{text}unknown seven\n")
    with command_refused(capsys, "no reference for unknown"):
        run_score(folders)


def test_references_and_hypotheses_have_separate_cleaners(folders):
    pytest.importorskip("tacotron_cleaner", reason="ESPnet 202611 leaves it to an extra")
    run_score(folders, "--cleaner", "tacotron", "--sclite_options=-s")
    assert row_of(folders).err == "100.0", "only references are in capitals; -s compares case"
    run_score(folders, "--cleaner", "tacotron", "--hyp_cleaner", "tacotron", "--sclite_options=-s")
    assert row_of(folders).err == "16.7"


def test_symbols_that_do_not_count(folders, tmp_path, capsys):
    with command_refused(capsys, f"--non_linguistic_symbols {tmp_path}/symbols: no such file"):
        run_score(folders, "--non_linguistic_symbols", f"{tmp_path}/symbols")
    (tmp_path / "symbols").write_text("tree\n\nthree\n")
    run_score(folders, "--non_linguistic_symbols", f"{tmp_path}/symbols")
    row = row_of(folders)
    assert (row.words, row.err) == ("5", "0.0")


def test_sclite_itself_gets_the_arguments_and_a_missing_one_is_named(folders, tmp_path, capsys):
    ref, hyp = tmp_path / "ref.trn", tmp_path / "hyp.trn"
    command = sclite_command(ScoreOptions(sclite="/opt/sclite", sclite_options="-s"), ref, hyp)
    assert " ".join(command) == f"/opt/sclite -s -r {ref} trn -h {hyp} trn -i rm -o all stdout"
    ours = sclite_command(ScoreOptions(), ref, hyp)
    assert ours[1:3] == ["-m", "espnet_medusa.bin.sclite"]
    assert ours[3:] == command[2:]
    with command_refused(capsys, "/no/such/sclite"):
        run_score(folders, "--sclite", "/no/such/sclite")


@cases(
    (
        ["a b (spk-u1)", "a (1089-1089-134686-0000)", "(x-y-u2)", "a b c (s-s-u1)"],
        {"u1", "1089-134686-0000", "u2", "s-u1", "0000"},
        {"u1": 2, "1089-134686-0000": 1, "u2": 0, "s-u1": 3},
    ),
    # Words of unknown utterances keep their labels.
    (["a b (s-u1)", "a b c (s-t-u1)", "a (s-v-w)"], {"u1"}, {"u1": 2, "s-t-u1": 3, "s-v-w": 1}),
)
def test_labels_join_speaker_and_utterance_with_a_hyphen(lines, ids, words, tmp_path):
    (tmp_path / "ref.trn").write_text("\n".join(lines))
    assert words_by_utterance(tmp_path / "ref.trn", ids) == words


SPACES = ["  ", "\t", "\v", "\f", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}", "\u2028", "\x1f"]


@pytest.mark.parametrize("space", SPACES, ids=ascii)
def test_white_space_of_any_kind_separates_words(folders, space):
    text = f"s1-a one{space}two three{space}\ns1-b four five\ns2-c six\n"
    for side in (0, 1):  # the reference, then both
        (folders[side] / "text").write_text(text)
    (folders[1] / "text").write_text("s1-a one two  three\ns1-b four five\ns2-c six\n")
    run_score(folders)
    assert (row_of(folders, "cer").words, row_of(folders, "cer").err) == ("25", "0.0")
    (folders[0] / "text").write_text("s1-a one two three\ns1-b four five\ns2-c six\n")
    (folders[1] / "text").write_text(text)
    run_score(folders)
    assert [row_of(folders, rate).err for rate in ("wer", "cer")] == ["0.0", "0.0"]


def test_no_character_of_a_hypothesis_prevents_a_score(folders):
    (folders[1] / "text").write_text("s1-a one two thr\0ee\ns1-b ;; four\ns2-c (six) ** \\ @\n")
    run_score(folders)
    assert row_of(folders).sentences == row_of(folders, "cer").sentences == "3"


def test_braces_are_scored_and_named(folders, tmp_path, capfd):
    (folders[0] / "text").write_text("s1-a one M^{ME} three\ns1-b four five\ns2-c six\n")
    (folders[1] / "text").write_text("s1-a one M^{ME} {\ns1-b four five\ns2-c six\n")
    run_score(folders)
    assert row_of(folders).err == "16.7"
    assert "s1-s1-a: '{' is a character of its word" in capfd.readouterr().err
    # NIST's program may end in this way.
    program = tmp_path / "sclite"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    with command_refused(capfd, "status -11", "omit --sclite, which fails on '{' in texts"):
        run_score(folders, "--sclite", str(program))


def test_labels_that_trn_files_cannot_have_are_named_at_once(folders, capsys):
    (folders[0] / "text").write_text("b-c one\nc two\nd(2) three\n")
    (folders[0] / "utt2spk").write_text("b-c a\nc a-b\nd(2) d\n")
    (folders[1] / "text").write_text("b-c one\nc two\nd(2) three\n")
    with command_refused(capsys, "c: its label in scoring, 'a-b-c'", "of b-c", "d(2): ", "rename"):
        run_score(folders)


def test_words_in_silence_are_insertions(folders, capsys):
    (folders[0] / "text").write_text("s1-a one two three\ns1-b\ns2-c six\n")
    run_score(folders)
    # A substitution, and two insertions, of four words.
    assert (row_of(folders).err, row_of(folders).inserted) == ("75.0", "50.0")
    assert "1 utterances have an empty reference; words in their hypotheses: 2" in (
        capsys.readouterr().out
    )


@cases(
    ("--cleaner", "nonesuch"), ("--hyp_cleaner", "nonesuch"), ("--sclite", "/no/sclite"),
    ("--bpemodel", "no.model"), ("--non_linguistic_symbols", "no.txt"),
)  # fmt: skip
def test_options_are_checked_before_decoding(option, value, capsys):
    stage.main(["check_scoring"])
    with command_refused(capsys, value):
        stage.main(["check_scoring", option, value])
