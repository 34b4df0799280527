"""The inference command: ESPnet's outputs, bad utterances, resuming, refusals."""

import argparse
import json
import os
import pickle
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import warm_python
from cases import cases
from experiment import DECODER, WINDOW_S, make_experiment, read_lines, write_corpus, write_noise
from job_log import assert_same_nbest_files, espnet_seconds, log_to
from media_files import BROKEN, write_broken
from refusals import Calls, assert_refused, command_refused, refused
from waiting import wait_for

from espnet_medusa.bin import asr_inference
from espnet_medusa.decoding.search.statistics import read_statistics
from espnet_medusa.inference import decoding_command
from espnet_medusa.recipes.rtf import read_timings

DECODE_CONFIGS = Path(__file__).resolve().parents[2] / "conf" / "decode"
EXACT = (
    "baseline", "exact", "exact_deep", "tree", "choices", "batch8", "length_penalty", "int8_drafts",
    "ctc_draft", "ctc_heads", "draft_model",
)  # fmt: skip
REFERENCES = dict.fromkeys(EXACT, "baseline") | {"beam5_ctc_draft": "beam5_ctc0.3"}


def job(experiment, folder, lines=("a never-read.wav",), *options: str) -> list[str]:
    (folder / "wav.scp").write_text("".join(f"{line}\n" for line in lines))
    return [
        *experiment.options(), "--output_dir", str(folder / "output"), *data(folder),
        "--search", "greedy", "--maxlenratio", "-12", *options,
    ]  # fmt: skip


def data(folder) -> list[str]:
    return ["--data_path_and_name_and_type", f"{folder / 'wav.scp'},speech,sound"]


def write_good(folder, count: int) -> list[str]:
    write_corpus(folder, {f"spk-{index:03d}": 0.2 + 0.02 * index for index in range(count)})
    return (folder / "wav.scp").read_text().splitlines()


def test_good_lines_have_results_and_bad_lines_reasons(experiment, tmp_path):
    entries = {kind: write_broken(tmp_path, kind) for kind in BROKEN}
    for name, seconds, rate_hz in (
        ("one_sample", 1 / 16000, 16000), ("long", WINDOW_S + 1, 16000), ("rate", 1.0, 8000),
        ("hour", 3600, 100),
    ):  # fmt: skip
        entries[name] = tmp_path / f"{name}.wav"
        write_noise(entries[name], seconds, rate_hz=rate_hz)
    entries |= {"missing": tmp_path / "missing.wav", "pipe": f"cat {entries['rate']} |"}
    bad = [f"bad-{name} {entry}" for name, entry in entries.items()]
    lines, output = write_good(tmp_path, 48) + bad, tmp_path / "output"
    with pytest.raises(SystemExit, match="^3$"):
        asr_inference.main(job(experiment, tmp_path, sorted(lines)))
    for name in ("text", "token", "token_int", "score"):
        assert len(read_lines(output / "1best_recog" / name)) == 48
    failed = read_lines(output / "failed_utterances")
    assert sorted(failed) == sorted(line.split()[0] for line in bad)
    for key, entry in (line.split(maxsplit=1) for line in bad):
        assert failed[key].count(entry) == 1 and key not in failed[key]
    assert "2.00" in failed["bad-long"] or "2 s" in failed["bad-long"]
    assert "8000" in failed["bad-rate"] and "16000" in failed["bad-rate"]
    assert "allow_pipes" in failed["bad-pipe"]
    statistics = json.loads((output / "statistics.json").read_text())
    assert statistics["set"]["num_utterances"] == len(statistics["utterances"]) == 48


def test_bad_lines_of_wav_scp_and_keys_are_named(experiment, tmp_path):
    good, output = write_good(tmp_path, 3), tmp_path / "output"
    command = job(experiment, tmp_path, [*good, good[0], "empty-entry"])
    with (tmp_path / "wav.scp").open("ab") as stream:
        stream.write(b"latin-\xe9 file.wav\n")
    assert_refused("^3$", asr_inference.main, command, error=SystemExit)
    failed = read_lines(output / "failed_utterances")
    assert {"spk-000", "empty-entry"} <= set(failed) and "again" in failed["spk-000"]
    assert len(failed) == 3
    assert sorted(read_lines(output / "1best_recog" / "text")) == ["spk-001", "spk-002"]
    keys = tmp_path / "keys.scp"
    keys.write_text("spk-001 x\nnobody x\n")
    with pytest.raises(SystemExit, match="^3$"):
        asr_inference.main([*command, "--key_file", str(keys)])
    assert list(read_lines(output / "failed_utterances")) == ["nobody"]


def test_failed_utterances_are_status_3_or_on_request_empty_texts(experiment, tmp_path, capsys):
    # ESPnet's asr.sh stops at a job whose status is not 0, and pairs lines of texts by number.
    lines, output = write_good(tmp_path, 2), tmp_path / "output"
    command = job(experiment, tmp_path, [*lines, "spk-000x gone.wav"])
    with command_refused(capsys, "1 utterance failed; listed in", status=3):
        asr_inference.main(command)
    texts = read_lines(output / "1best_recog" / "text")
    assert [*texts] == ["spk-000", "spk-001"]
    asr_inference.main([*command, "--failed_as_empty", "true"])
    assert "1 utterance failed; listed in" in capsys.readouterr().err
    for name in ("text", "token", "token_int", "score"):
        written = (output / "1best_recog" / name).read_text().splitlines()
        keys, values = zip(*(line.split(" ", 1) for line in written), strict=True)
        assert keys == ("spk-000", "spk-001", "spk-000x")
    assert values[2] == "0.0" and read_lines(output / "1best_recog" / "text")["spk-000x"] == ""
    assert [*read_lines(output / "failed_utterances")] == ["spk-000x"]
    assert not (output / "journal.old.jsonl").exists(), "the texts of the first run are used"


def without_seconds(folder) -> dict:
    """Return the statistics of utterances; seconds differ from run to run."""
    seconds = dict.fromkeys(("draft_seconds", "decoder_seconds", "total_seconds"), 0.0)
    rows = read_statistics(folder / "statistics.json")
    return {key: replace(row, **seconds) for key, row in rows.items()}


def test_batches_write_what_single_utterances_write(experiment, tmp_path, rows, caplog):
    command = job(experiment, tmp_path, write_good(tmp_path, 7))
    log = tmp_path / "asr_inference.1.log"
    for name, options in {
        "output": [],
        "batch": ["--batch_size", "4"],
        "frames": ["--batch_size", "7", "--max_batch_frames", "75"],
    }.items():
        rows.append(name)
        log.write_text("")
        with log_to(log):
            asr_inference.main([*command, "--output_dir", str(tmp_path / name), *options])
    assert rows == ["output", *[1] * 7, "batch", 4, 3, "frames", 2, 2, 3]
    for name in ("text", "token", "token_int"):
        single = read_lines(tmp_path / "output" / "1best_recog" / name)
        assert [*single] == [f"spk-{number:03d}" for number in range(7)]
        for folder in ("batch", "frames"):
            assert read_lines(tmp_path / folder / "1best_recog" / name) == single
            assert without_seconds(tmp_path / folder) == without_seconds(tmp_path / "output")
    times = read_timings(log)
    samples, decoding_s = sum(one.samples for one in times), sum(one.seconds for one in times)
    statistics = read_statistics(tmp_path / "frames" / "statistics.json").values()
    assert samples / 16000 == pytest.approx(sum(row.audio_seconds for row in statistics))
    assert decoding_s == pytest.approx(sum(row.total_seconds for row in statistics), abs=0.002 * 7)
    assert espnet_seconds(log) == pytest.approx((7, samples, decoding_s)) and len(times) == 7
    # Results do not depend on the batch size, so a job resumes with another one.
    for options, resumed in ([], True), (["--acceptance", "typical"], False):
        caplog.clear()
        with caplog.at_level("INFO"):
            asr_inference.main([*command, "--output_dir", str(tmp_path / "batch"), *options])
        assert ("resumed: 7 of 7" in caplog.text) == ("resumed" in caplog.text) == resumed
        assert len(read_lines(tmp_path / "batch" / "1best_recog" / "text")) == 7


def test_earlier_results_draft(experiment, tmp_path):
    lines, output = write_good(tmp_path, 3), tmp_path / "output"
    options = "--minlenratio", "-4", "--suppress_tokens", "0", "1", "2"  # texts without blanks
    asr_inference.main(job(experiment, tmp_path, lines, *options))
    before, ids = tmp_path / "before", read_lines(output / "1best_recog" / "token_int")
    output.rename(before)
    for source in (before, before / "1best_recog" / "text"):
        words = *options, "--draft_text_from", str(source)
        asr_inference.main(job(experiment, tmp_path, lines, *words))
        assert read_lines(output / "1best_recog" / "token_int") == ids
    calls = [
        sum(counts.decoder_calls for counts in read_statistics(folder / "statistics.json").values())
        for folder in (before, output)
    ]
    assert calls[1] < calls[0]


def test_help_accepts_percent_signs_of_espnet(monkeypatch):
    theirs = argparse.ArgumentParser()
    theirs.add_argument("--margin", type=int, default=3, help="%(default)s: 3.19% CER, 100%% (all)")
    monkeypatch.setattr(decoding_command, "get_espnet_parser", lambda: theirs)
    assert "3: 3.19% CER, 100% (all)" in decoding_command.get_parser().format_help()


def test_a_killed_job_has_recorded_its_results(experiment, tmp_path):
    fifo = tmp_path / "blocks.wav"
    os.mkfifo(fifo)
    lines = [*write_good(tmp_path, 3), f"zz cat {fifo} |"]
    command = job(experiment, tmp_path, lines, "--allow_pipes", "true")
    module = [warm_python.executable(), "-m", "espnet_medusa.bin.asr_inference", *command]
    journal = tmp_path / "output" / "journal.jsonl"
    readers = []

    def fourth_is_read() -> bool:
        assert child.poll() is None, "the job has ended"
        try:  # fails until cat opens the other end
            readers.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    with subprocess.Popen(module, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        wait_for(fourth_is_read)
        wait_for(lambda: journal.is_file() and journal.read_text().count("\n") == 4)
        child.kill()
    os.close(readers[0])  # which ends cat
    assert journal.read_text().count("\n") == 1 + 3


def test_results_belong_to_the_files_in_folders_of_models(experiment, tmp_path):
    whisper, copy = tmp_path / "whisper", tmp_path / "copy"
    whisper.mkdir()
    copy.mkdir()
    for name, file in ("config.yaml", experiment.config), ("model.pth", experiment.model):
        (copy / name).write_bytes(file.read_bytes())
    for changed, *words in (
        (whisper / "model.safetensors", "--model_tag", whisper),
        (whisper / "config.json", "--draft_model", whisper),
        (copy / "model.pth", "--draft_model", copy),
        (copy / "config.yaml", "--asr_model_file", copy / "model.pth"),
        (copy / "config.yaml", "--lm_file", copy / "model.pth"),
    ):
        command = [*data(tmp_path), "--output_dir", copy / "decode", *words]
        options = vars(decoding_command.get_parser().parse_args([*map(str, command)]))
        before = decoding_command.made_with(options)
        (copy / "RESULTS.md").write_text("results")
        assert decoding_command.made_with(options) == before
        with changed.open("a") as stream:
            stream.write(" ")
        assert decoding_command.made_with(options) != before, words
        (copy / "RESULTS.md").unlink()


@cases(
    (["--search", "greedi"], "search: 'greedi'.*did you mean 'greedy'"),
    (["--draft_depth", "4"], "draft_depth: 4; allowed: at most 3"),
    (["--draft_depth", "-1"], "draft_depth: -1 is too small; allowed: 0 or more"),
    (["--draft_width", "0"], "draft_width: 0 is too small; allowed: 1 or more"),
    (["--draft_budget", "0"], "draft_budget: 0 is too small"),
    (["--medusa_choices", "1", "2", "1", "1", "1"], "medusa_choices: depth: 4.*at most 3"),
    (["--medusa_choices", "2", "2"], r"medusa_choices: \[2, 2\]; allowed: 1 for the root"),
    (["--beam_size", "0"], "beam_size: 0 is too small; allowed: 1 or more"),
    (["--suppress_tokens", "99"], "suppress_tokens: 99; allowed: a list of token ids, 0 to 13"),
    (["--batch_size", "0"], "batch_size: 0 is too small"),
    (["--batch_size", "2", "--search", "beam", "--streaming", "true"], "batch_size: 2.*stream"),
    (["--max_batch_frames", "0"], "max_batch_frames: 0 is too small"),
    (["--nbest", "3"], "nbest: 3; search: greedy allows only 1"),
    (["--asr_model_file", "nowhere.pth"], "nowhere.pth: no such checkpoint"),
)
def test_bad_options_stop_before_audio_is_read(change, message, experiment, tmp_path):
    with pytest.raises(SystemExit, match=message):
        asr_inference.main([*job(experiment, tmp_path), *change])
    assert not (tmp_path / "output" / "failed_utterances").exists()


def test_unknown_options_of_a_config_are_refused(experiment, tmp_path, capsys):
    (tmp_path / "decode.yaml").write_text("search: greedy\nacceptanse: exact\n")
    with command_refused(capsys, "acceptanse", status=2):
        asr_inference.main([*job(experiment, tmp_path), "--config", f"{tmp_path}/decode.yaml"])


@pytest.fixture(scope="module")
def decoded(experiment, tmp_path_factory):
    """Return a function from a decode config and options to the token ids, which it caches."""
    folder = tmp_path_factory.mktemp("recurrent")
    conf = DECODER | {"heads": "recurrent", "heads_conf": {"num_heads": 3}}
    recurrent = make_experiment(folder / "exp", decoder_conf=conf)
    job(recurrent, folder, write_good(folder, 3))

    @cache
    def decode(config: str, *options: str) -> dict[str, str]:
        output = tmp_path_factory.mktemp("decoded")
        command = [*recurrent.options(), "--config", str(DECODE_CONFIGS / f"{config}.yaml")]
        command += [*data(folder), "--maxlenratio", "-9", "--output_dir", str(output), *options]
        asr_inference.main(command)
        return read_lines(output / "1best_recog" / "token_int")

    return decode


@pytest.mark.parametrize("config", sorted(path.stem for path in DECODE_CONFIGS.glob("*.yaml")))
def test_each_decode_config_decodes(experiment, decoded, config):
    draft = ["--draft_model", str(experiment.folder)] if config == "draft_model" else []
    found = decoded(config, *draft)
    assert len(found) == 3
    if config in REFERENCES:
        assert found == decoded(REFERENCES[config], "--draft_depth", "0")


@pytest.mark.parametrize("kind", ["code", "garbage", "shape", "vocabulary", "incomplete"])
def test_bad_checkpoints_are_one_line_and_run_no_code(experiment, tmp_path, kind, in_folder):
    path = tmp_path / "bad.pth"
    weights = torch.load(experiment.model, weights_only=True)
    if kind == "shape":
        weights["encoder.whisper.conv1.weight"] = torch.zeros(16, 80, 3)
    elif kind == "vocabulary":
        weights["decoder.whisper.embed_tokens.weight"] = torch.zeros(99, 32)
    elif kind == "incomplete":
        del weights["decoder.heads.heads.0.layers.0.weight"]
    elif kind == "code":
        weights = {"weight": Calls(os.system, "echo ran > exploited")}
    torch.save(weights, path)
    if kind == "garbage":
        path.write_bytes(pickle.dumps("nothing")[:-3])
    with refused("error:", "bad.pth", error=SystemExit):
        asr_inference.main([*job(experiment, tmp_path), "--asr_model_file", str(path)])
    assert not (tmp_path / "exploited").exists()


def test_stock_espnet_with_the_plugin_writes_the_same(experiment, tmp_path):
    job(experiment, tmp_path, write_good(tmp_path, 3))
    options = [*experiment.options(), *data(tmp_path), "--beam_size", "3", "--ctc_weight", "0.3"]
    options += ["--maxlenratio", "-8", "--nbest", "2"]
    python = [warm_python.executable(), "-m", "espnet_medusa.bin.python"]
    stock = [*python, "-m", "espnet2.bin.asr_inference"]
    subprocess.run([*stock, *options, "--output_dir", tmp_path / "stock"], check=True)
    asr_inference.main([*options, "--output_dir", str(tmp_path / "ours")])
    names = "text", "token", "token_int"
    for path in (tmp_path / "stock").glob("?best_recog"):
        assert {file.name for file in path.iterdir()} == {*names, "score"}
    assert_same_nbest_files(tmp_path / "ours", tmp_path / "stock", names)
