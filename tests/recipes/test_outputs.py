"""Splitting over jobs, merging of their outputs, real-time factor and shapes."""

import json

import pytest
from cases import cases
from refusals import assert_refused, command_refused
from tiny_whisper import save_tiny_whisper

from espnet_medusa.bin import stage
from espnet_medusa.data.kaldi.table import read_table, write_table
from espnet_medusa.decoding.search.statistics import DecodingStatistics, write_statistics
from espnet_medusa.inference.journal import Decoded, Journal, NBestEntry
from espnet_medusa.recipes.rtf import calculate_rtf
from espnet_medusa.recipes.shapes import drop_long_texts, longest_text


def write_job(log_dir, job, texts, failed=None):
    folder = log_dir / f"output.{job}" / "1best_recog"
    folder.mkdir(parents=True)
    for name in ("text", "token", "token_int", "score"):
        rows = (f"{key} {name}:{value}\n" for key, value in texts.items())
        (folder / name).write_text("".join(rows), encoding="utf-8")
    if failed:
        rows = (f"{key} {value}\n" for key, value in failed.items())
        (folder.parent / "failed_utterances").write_text("".join(rows))


def merge(tmp_path, ids):
    (tmp_path / "wav.scp").write_text("".join(f"{key} {key}.wav\n" for key in ids))
    places = ["--log_dir", f"{tmp_path}/log", "--output_dir", f"{tmp_path}/out"]
    stage.main(["merge_outputs", "--keys", f"{tmp_path}/wav.scp", *places])


def test_split_gives_all_inputs_the_same_number_of_jobs(tmp_path, capsys):
    command = ["--nj", "5"]
    for name, count in (("train", 7), ("valid", 3)):
        rows = [f"u{number} {number}.wav\n" for number in range(count)]
        (tmp_path / f"{name}.scp").write_text("".join(rows))
        command += ["--keys", f"{tmp_path}/{name}.scp", "--output", f"{tmp_path}/log/{name}.JOB"]
    stage.main(["split_keys", *command])
    assert capsys.readouterr().out == "3\n"
    parts = [(tmp_path / "log" / f"train.{job}").read_text() for job in (1, 2, 3)]
    assert "".join(parts) == (tmp_path / "train.scp").read_text()
    assert all(parts)
    assert not (tmp_path / "log" / "train.4").exists()
    (tmp_path / "train.scp").write_text("")
    with command_refused(capsys, "is empty"):
        stage.main(["split_keys", *command])


def test_merged_files_are_sorted_by_byte_and_keep_empty_texts(tmp_path):
    write_job(tmp_path / "log", 1, {"b": "x y", "é": "z"})
    write_job(tmp_path / "log", 2, {"a": "", "B": "w"})
    (tmp_path / "log" / "output.2" / "1best_recog" / "text").write_text("a \nB text:w\n")
    merge(tmp_path, ["a", "b", "é", "B"])
    assert (tmp_path / "out" / "text").read_text("utf-8") == "B text:w\na\nb text:x y\né text:z\n"
    assert (tmp_path / "out" / "score").read_text("utf-8").startswith("B score:w\n")


def test_failed_utterances_with_an_empty_text_are_complete(tmp_path, capsys):
    write_job(tmp_path / "log", 1, {"a": "x", "b": ""}, {"b": "no audio"})
    for name in ("text", "token", "token_int", "score"):
        path = tmp_path / "log" / "output.1" / "1best_recog" / name
        path.write_text(f"a {name}\nb \n")
    statistics = {"a": DecodingStatistics(decoder_calls=1)}
    write_statistics(tmp_path / "log" / "output.1" / "statistics.json", statistics)
    merge(tmp_path, "ab")
    printed = capsys.readouterr()
    assert "1 of 2 utterances decoded" in printed.out and "not decoded: b: no audio" in printed.err
    assert (tmp_path / "out" / "text").read_text() == "a text\nb\n"
    assert [*json.loads((tmp_path / "out" / "statistics.json").read_text())["utterances"]] == ["a"]


def test_more_than_nine_jobs_and_their_statistics_after_a_failed_run(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "failed_utterances").write_text("old\n")
    for job in range(1, 12):
        write_job(tmp_path / "log", job, {f"u{job}": "t"})
        statistics = {f"u{job}": DecodingStatistics(decoder_calls=job, tokens=2 * job)}
        write_statistics(tmp_path / "log" / f"output.{job}" / "statistics.json", statistics)
    merge(tmp_path, [f"u{job}" for job in range(1, 12)])
    report = json.loads((tmp_path / "out" / "statistics.json").read_text())
    assert report["set"]["decoder_calls"] == 66 and len(report["utterances"]) == 11
    assert not (tmp_path / "out" / "failed_utterances").exists()


def test_failed_utterances_are_named_and_give_status_3(tmp_path, capsys):
    write_job(tmp_path / "log", 1, {"a": "x"}, {"c": "too long", "b": "not a number"})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "statistics.json").write_text("old\n")
    assert_refused("3", merge, tmp_path, ["a", "b", "c"], error=SystemExit)
    shown = capsys.readouterr()
    assert "1 of 3 utterances decoded" in shown.out
    assert shown.err.index("b: not a number") < shown.err.index("c: too long")
    assert (tmp_path / "out" / "failed_utterances").read_text() == "b not a number\nc too long\n"
    assert (tmp_path / "out" / "text").read_text() == "a text:x\n"
    assert not (tmp_path / "out" / "statistics.json").exists()


@cases(
    ({}, ["a", "lost1", "lost2"], "neither a result nor a reason: lost1, lost2"),
    ({"a": "y"}, ["a"], "another job has the same ids: a"),
)
def test_lost_and_repeated_utterances_are_named(second, ids, message, tmp_path, capsys):
    write_job(tmp_path / "log", 1, {"a": "x"})
    write_job(tmp_path / "log", 2, second)
    with command_refused(capsys, message):
        merge(tmp_path, ids)


def test_segments_of_jobs_are_joined_and_words_stay_in_order(tmp_path):
    for job, (key, starts) in enumerate({"b": ("0.00", "31.20"), "a": ("2.00",)}.items(), 1):
        write_job(tmp_path / "log", job, {key: "x"})
        folder = tmp_path / "log" / f"output.{job}" / "segments"
        write_table(folder / "wav.scp", {key: f"{key}.wav"})
        ids = [f"{key}_{start}" for start in starts]
        write_table(folder / "segments", {name: f"{key} {name[2:]} 40.00" for name in ids})
        for name, value in {"text": "x y", "utt2spk": key}.items():
            write_table(folder / name, dict.fromkeys(ids, value))
        write_table(folder / "spk2utt", {key: " ".join(ids)})
        (folder / "ctm").write_text("".join(f"{key} 1 {start} 0.10 x 0.50\n" for start in starts))
    write_job(tmp_path / "log", 3, {"c": "x"})  # no segments
    merge(tmp_path, ["a", "b", "c"])
    folder = tmp_path / "out" / "segments"
    segments = "a_2.00 a 2.00 40.00\nb_0.00 b 0.00 40.00\nb_31.20 b 31.20 40.00\n"
    assert (folder / "segments").read_text() == segments
    assert (folder / "wav.scp").read_text() == "a a.wav\nb b.wav\n"
    assert (folder / "spk2utt").read_text() == "a a_2.00\nb b_0.00 b_31.20\n"
    assert (folder / "text").read_text() == "a_2.00 x y\nb_0.00 x y\nb_31.20 x y\n"
    ctm = "a 1 2.00 0.10 x 0.50\nb 1 0.00 0.10 x 0.50\nb 1 31.20 0.10 x 0.50\n"
    assert (folder / "ctm").read_text() == ctm


def log_line(seconds, text):
    return f"2026-11-21 01:00:{seconds:06.3f}".replace(".", ",") + f" (x:1) INFO: {text}\n"


def test_rtf_pairs_lines_and_leaves_failed_utterances_out(tmp_path, capsys):
    (tmp_path / "asr_inference.1.log").write_text(
        log_line(1.0, "speech length: 16000")
        + log_line(1.5, "best hypo: a")
        + log_line(2.0, "speech length: 999999")  # Failed: no hypothesis.
        + log_line(10.0, "speech length: 32000")
        + log_line(11.0, "best hypo: b")
    )
    log = log_line(5.0, "speech length: 8000") + log_line(5.25, "best hypo: c")
    (tmp_path / "asr_inference.2.log").write_text(log)
    stage.main(["calculate_rtf", "--log_dir", str(tmp_path), "--fs", "16k"])
    assert capsys.readouterr().out == (
        "Total audio duration: 3.500 [sec]\n"
        "Total decoding time: 1.750 [sec]\n"
        "RTF: 0.500\n"
        "Latency: 583.333 [ms/sentence]\n"
    )
    (tmp_path / "x.log").write_text("Traceback\n")
    assert_refused("nothing decoded", calculate_rtf, [tmp_path / "x.log"], 16000, error=ValueError)


@cases(
    ("calculate_rtf --log_dir x --fs bad", "--fs: bad: allowed: a sample rate such as 16k"),
    ("calculate_rtf --log_dir x --fs inf", "--fs: inf: allowed"),
    ("format_data --data_dir x --output_dir y --fs bad", "--fs: bad: allowed"),
    ("filter_data --input_dir x --output_dir y --fs none", "--fs: none: allowed"),
    ("perturb_speed --data_dir x --output_dir y --factors 9", "--factors: factor 9: allowed"),
)
def test_wrong_arguments_are_refused_before_any_work(command, message, capsys):
    with command_refused(capsys, message, "allowed: ", status=2):
        stage.main(command.split())


def test_the_same_split_keeps_the_jobs_outputs_and_another_removes_them(tmp_path):
    write_table(tmp_path / "wav.scp", {f"u{i}": f"{i}.wav" for i in range(5)})
    logs = tmp_path / "logdir"

    def split(jobs: int, *more: str) -> None:
        options = ["--keys", f"{tmp_path}/wav.scp", "--output", f"{logs}/keys.JOB.scp"]
        stage.main(["split_keys", "--nj", str(jobs), *options, "--work_dir", str(logs), *more])

    split(3)
    (logs / "output.1").mkdir()
    split(3)
    assert (logs / "output.1").is_dir()
    for more in ([], ["--resume", "false"]):
        split(2, *more)
        assert sorted(path.name for path in logs.iterdir()) == ["keys.1.scp", "keys.2.scp"]
        (logs / "output.1").mkdir()
    write_table(tmp_path / "wav.scp", {f"v{i}": f"{i}.wav" for i in range(5)})
    split(2)
    assert not (logs / "output.1").exists()


def test_another_division_keeps_the_results_of_each_utterance(tmp_path, capsys):
    logs, all_keys = tmp_path / "logdir", ["a", "b", "c", "d", "e"]

    def split(keys: list[str], jobs: int) -> list[list[str]]:
        """Return the utterances of each job that have a result; then decode the others."""
        write_table(tmp_path / "wav.scp", {key: f"{key}.wav" for key in keys})
        options = ["--keys", f"{tmp_path}/wav.scp", "--output", f"{logs}/keys.JOB.scp"]
        stage.main(["split_keys", "--nj", str(jobs), *options, "--work_dir", str(logs)])
        resumed = []
        for path in sorted(logs.glob("keys.*.scp")):
            journal = Journal(logs / f"output.{path.suffixes[0][1:]}", {"options": {}})
            resumed.append([*journal.decoded])
            for key in read_table(path).keys() - journal.decoded.keys():
                journal.add(Decoded(key, [NBestEntry(f"text of {key}", [], [], "0")]))
        return resumed

    assert split(all_keys[:4], 2) == [[], []]
    assert split(all_keys[:4], 3) == [["a"], ["b"], ["c", "d"]]
    printed = capsys.readouterr()
    assert "4 of 4 utterances keep their results" in printed.err
    assert printed.out.split() == ["2", "3"], "scripts read the number of jobs"
    assert split(["a", "c", "d"], 2) == [["a"], ["c", "d"]]
    assert split(all_keys, 1) == [["a", "b", "c", "d"]], "b is in the list again"
    # An interruption while folders are replaced, and results of other options.
    (logs / "output.1" / "journal.jsonl").rename(logs / "journal.jsonl")
    assert split(all_keys, 2) == [["a", "b"], ["c", "d", "e"]]
    Journal(logs / "output.2", {"options": {"beam_size": 2}})
    assert split(all_keys, 1) == [[]]


def shapes(folder, **lengths: str):
    for name in ("text_shape", "speech_shape"):
        lines = [f"{key} {shape if name[0] == 't' else 9}\n" for key, shape in lengths.items()]
        (folder / name).write_text("".join(lines))
    return folder


def test_the_limit_is_the_decoders(tmp_path):
    whisper = {"whisper_model": str(save_tiny_whisper(tmp_path / "whisper", vocab_size=300))}
    assert longest_text("whisper_medusa", whisper) == 447
    assert longest_text("whisper_medusa", {"max_target_positions": 40, "heads": "block"}) == 39
    assert longest_text("transformer", {"num_blocks": 6}) is longest_text(None, None) is None
    with pytest.raises(ValueError, match="decoder_conf: unknown option 'max_target_position'"):
        longest_text("whisper_medusa", {"max_target_position": 40})


def test_long_texts_leave_all_shape_files_and_another_limit_restores_them(tmp_path, capsys):
    lengths = {"a": "3", "b": "7", "c": "5,80", "d": "6"}
    assert drop_long_texts(shapes(tmp_path, **lengths), 5) == ["b", "d"]
    assert (tmp_path / "text_shape").read_text() == "a 3\nc 5,80\n"
    assert (tmp_path / "speech_shape").read_text() == "a 9\nc 9\n"
    assert (tmp_path / "long_texts").read_text() == "b 7\nd 6\n"
    assert "left out 2" in capsys.readouterr().out
    for longest in (None, 7):
        assert drop_long_texts(shapes(tmp_path, **lengths), longest) == []
        assert len((tmp_path / "text_shape").read_text().splitlines()) == 4
        assert not (tmp_path / "long_texts").exists()
    with pytest.raises(ValueError, match="every text is longer than the decoder's 2 tokens; cut"):
        drop_long_texts(shapes(tmp_path, a="3", b="7"), 2)
