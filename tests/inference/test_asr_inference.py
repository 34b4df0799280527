"""The inference command: ESPnet's outputs, bad utterances, resuming, refusals."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from experiment import WINDOW_S, make_experiment, read_lines, write_corpus, write_noise
from waiting import wait_for

from espnet_medusa.bin import asr_inference
from espnet_medusa.inference.speech2text import Speech2Text


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return make_experiment(tmp_path_factory.mktemp("experiment"))


def job(experiment, folder, lines=("a never-read.wav",), *options: str) -> list[str]:
    """Write wav.scp; return the command line."""
    (folder / "wav.scp").write_text("".join(f"{line}\n" for line in lines))
    return [
        *experiment.options(), "--output_dir", str(folder / "output"), *data(folder),
        "--search", "greedy", "--maxlenratio", "-12", *options,
    ]  # fmt: skip


def data(folder) -> list[str]:
    return ["--data_path_and_name_and_type", f"{folder / 'wav.scp'},speech,sound"]


def write_good(folder, count: int) -> list[str]:
    """Write audio files; return their lines of wav.scp."""
    write_corpus(folder, {f"spk-{index:03d}": 0.2 + 0.02 * index for index in range(count)})
    return (folder / "wav.scp").read_text().splitlines()


def write_broken(folder) -> list[str]:
    """Return twelve lines of wav.scp, broken in different ways."""
    lines = []

    def line(name: str, entry=None):
        lines.append(f"bad-{name} {folder / (name + '.wav') if entry is None else entry}")
        return folder / f"{name}.wav"

    line("corrupt").write_bytes(b"RIFF" + bytes(range(200)))
    line("empty").write_bytes(b"")
    soundfile.write(line("zerolength"), np.zeros(0), 16000)
    nan = np.full(8000, np.nan, dtype=np.float32)
    soundfile.write(line("nan"), nan, 16000, subtype="FLOAT")
    write_noise(line("onesample"), 1 / 16000)
    write_noise(line("toolong"), WINDOW_S + 1)
    soundfile.write(line("hour"), np.zeros(3600 * 100), 100)
    write_noise(line("wrongrate"), 1.0, rate_hz=8000)
    line("missing")
    whole = folder / "whole.wav"
    write_noise(whole, 1.0)
    line("truncated").write_bytes(whole.read_bytes()[:9000])
    line("pipe", entry=f"cat {whole} |")
    line("text").write_text("this is no audio at all\n" * 20)
    return lines


def test_60_lines_have_48_results_and_12_failures(experiment, tmp_path):
    lines = write_good(tmp_path, 48) + write_broken(tmp_path)
    assert len(lines) == 60
    with pytest.raises(SystemExit, match="12 utterances failed"):
        asr_inference.main(job(experiment, tmp_path, sorted(lines)))
    output = tmp_path / "output"
    for name in ("text", "token", "token_int", "score"):
        assert len(read_lines(output / "1best_recog" / name)) == 48
    failed = read_lines(output / "failed_utterances")
    assert sorted(failed) == sorted(line.split()[0] for line in lines if line.startswith("bad"))
    for key, reason in failed.items():
        assert key in reason
    assert "2.00" in failed["bad-toolong"] or "2 s" in failed["bad-toolong"]
    assert "8000" in failed["bad-wrongrate"] and "16000" in failed["bad-wrongrate"]
    assert "allow_pipes" in failed["bad-pipe"]
    statistics = json.loads((output / "statistics.json").read_text())
    assert statistics["set"]["num_utterances"] == len(statistics["utterances"]) == 48


def test_bad_lines_of_wav_scp_and_keys_are_named(experiment, tmp_path):
    good, output = write_good(tmp_path, 3), tmp_path / "output"
    command = job(experiment, tmp_path, [*good, good[0], "empty-entry"])
    with (tmp_path / "wav.scp").open("ab") as stream:
        stream.write(b"latin-\xe9 file.wav\n")
    with pytest.raises(SystemExit, match="3 utterances failed"):
        asr_inference.main(command)
    failed = read_lines(output / "failed_utterances")
    assert {"spk-000", "empty-entry"} <= set(failed) and "again" in failed["spk-000"]
    assert len(failed) == 3
    assert sorted(read_lines(output / "1best_recog" / "text")) == ["spk-001", "spk-002"]

    keys = tmp_path / "keys.scp"
    keys.write_text("spk-001 x\nnobody x\n")
    with pytest.raises(SystemExit, match="1 utterances failed"):
        asr_inference.main([*command, "--key_file", str(keys)])
    assert list(read_lines(output / "failed_utterances")) == ["nobody"]


def test_pipes_run_only_when_allowed(experiment, tmp_path):
    write_noise(tmp_path / "a.wav", 0.5)
    lines = [f"a cat {tmp_path / 'a.wav'} |"]
    asr_inference.main(job(experiment, tmp_path, lines, "--allow_pipes", "true"))
    assert list(read_lines(tmp_path / "output" / "1best_recog" / "score")) == ["a"]


def test_log_lines_and_scores_are_espnets(experiment, tmp_path, caplog):
    with caplog.at_level("INFO"):
        asr_inference.main(job(experiment, tmp_path, write_good(tmp_path, 2)))
    messages = [record.getMessage() for record in caplog.records]
    assert sum(message.startswith("speech length: ") for message in messages) == 2
    assert sum(message.startswith("best hypo: ") for message in messages) == 2
    for score in read_lines(tmp_path / "output" / "1best_recog" / "score").values():
        assert score.startswith("tensor(")


def test_interrupted_job_resumes_and_other_options_start_anew(experiment, tmp_path, caplog):
    command = job(experiment, tmp_path, write_good(tmp_path, 6))
    asr_inference.main(command)
    output = tmp_path / "output"
    whole = {path.name: path.read_text() for path in (output / "1best_recog").iterdir()}
    journal = output / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    # As if killed inside the fourth result.
    journal.write_text("".join(lines[:4]) + lines[4][: len(lines[4]) // 2])
    shutil.rmtree(output / "1best_recog")
    with caplog.at_level("INFO"):
        asr_inference.main(command)
    assert "resumed: 3 of 6 utterances were decoded before" in caplog.text
    assert {path.name: path.read_text() for path in (output / "1best_recog").iterdir()} == whole
    caplog.clear()
    with caplog.at_level("INFO"):
        asr_inference.main([*command, "--acceptance", "typical"])
    assert "resumed" not in caplog.text
    assert len(read_lines(output / "1best_recog" / "text")) == 6


def test_a_killed_job_has_recorded_its_results(experiment, tmp_path):
    fifo = tmp_path / "blocks.wav"
    os.mkfifo(fifo)
    lines = [*write_good(tmp_path, 3), f"zz cat {fifo} |"]
    command = job(experiment, tmp_path, lines, "--allow_pipes", "true")
    module = [sys.executable, "-m", "espnet_medusa.bin.asr_inference", *command]
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--search", "greedi"], "search: 'greedi'.*did you mean 'greedy'"),
        (["--acceptance", "any"], "acceptance: 'any'.*exact, typical"),
        (["--draft_depth", "4"], "draft_depth: 4; allowed: at most 3"),
        (["--draft_depth", "-1"], "draft_depth: -1 is too small; allowed: 0 or more"),
        (["--draft_width", "0"], "draft_width: 0 is too small; allowed: 1 or more"),
        (["--draft_budget", "0"], "draft_budget: 0 is too small"),
        (["--medusa_choices", "1", "2", "1", "1", "1"], "medusa_choices: depth: 4.*at most 3"),
        (["--medusa_choices", "2", "2"], r"medusa_choices: \[2, 2\]; allowed: 1 for the root"),
        (["--search", "beam", "--medusa_choices", "1", "2"], "medusa_choices: allowed with search"),
        (["--beam_size", "0"], "beam_size: 0 is too small; allowed: 1 or more"),
        (["--typical_alpha", "-0.3"], "typical_alpha: -0.3.*above 0"),
        (["--top_m", "0"], "top_m: 0 is too small"),
        (["--threshold", "1.5"], "threshold: 1.5"),
        (["--search", "beam", "--acceptance", "typical"], "acceptance: typical; allowed with sea"),
        (["--suppress_tokens", "99"], "suppress_tokens: 99; allowed: a list of token ids, 0 to 13"),
        (["--exponential_decay_length_penalty", "1"], "exponential_decay_length_penalty"),
        (["--batch_size", "0"], "batch_size: 0 is too small"),
        (["--batch_size", "2", "--search", "beam", "--streaming", "true"], "batch_size: 2.*stream"),
        (["--max_batch_frames", "0"], "max_batch_frames: 0 is too small"),
        (["--nbest", "3"], "nbest: 3; allowed with search: greedy: 1"),
        (["--asr_model_file", "nowhere.pth"], "nowhere.pth: no such checkpoint"),
    ],
)
def test_bad_options_stop_before_audio_is_read(experiment, tmp_path, change, message):
    with pytest.raises(SystemExit, match=message):
        asr_inference.main([*job(experiment, tmp_path), *change])
    assert not (tmp_path / "output" / "failed_utterances").exists()


def test_unverified_drafts_of_untrained_heads_are_refused(tmp_path):
    untrained = make_experiment(tmp_path / "exp", keep_weights=True)
    command = [*job(untrained, tmp_path), "--acceptance", "threshold"]
    with pytest.raises(SystemExit, match="acceptance: threshold.*never trained.*allowed: exact"):
        asr_inference.main(command)


DECODE_CONFIGS = Path(__file__).resolve().parents[2] / "conf" / "decode"


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    sizes = {
        "num_blocks": 1, "attention_heads": 2, "linear_units": 48, "max_target_positions": 40,
        "heads": "recurrent", "heads_conf": {"num_heads": 3},
    }  # fmt: skip
    return make_experiment(tmp_path_factory.mktemp("recurrent"), decoder_conf=sizes)


@pytest.mark.parametrize(
    "config", sorted(DECODE_CONFIGS.glob("*.yaml")), ids=lambda path: path.stem
)
def test_each_decode_config_decodes(recurrent, experiment, tmp_path, config):
    job(recurrent, tmp_path, write_good(tmp_path, 3))
    command = [*recurrent.options(), "--config", str(config), "--maxlenratio", "-9"]
    command += data(tmp_path)
    if config.stem == "draft_model":
        command += ["--draft_model", str(experiment.folder)]
    asr_inference.main([*command, "--output_dir", str(tmp_path / "output")])
    assert len(read_lines(tmp_path / "output" / "1best_recog" / "text")) == 3
    exact = (
        "plain", "exact", "exact_deep", "tree", "choices", "batch8", "length_penalty",
        "int8_drafts", "ctc_draft", "ctc_heads", "draft_model",
    )  # fmt: skip
    references = dict.fromkeys(exact, "plain") | {"beam5_ctc_draft": "beam5_ctc0.3"}
    if config.stem in references:
        plain = [*command, "--draft_depth", "0", "--output_dir", str(tmp_path / "plain")]
        plain[plain.index(str(config))] = str(DECODE_CONFIGS / f"{references[config.stem]}.yaml")
        asr_inference.main(plain)
        ours, theirs = (
            read_lines(tmp_path / side / "1best_recog" / "token_int")
            for side in ("output", "plain")
        )
        assert ours == theirs


def test_unknown_key_in_a_decode_config_is_refused(experiment, tmp_path, capsys):
    config = tmp_path / "decode.yaml"
    config.write_text("search: greedy\nacceptanse: exact\n")
    with pytest.raises(SystemExit):
        asr_inference.main([*job(experiment, tmp_path), "--config", str(config)])
    assert "acceptanse" in capsys.readouterr().err


class Exploit:
    def __reduce__(self):
        return os.system, ("echo ran > exploited",)


@pytest.mark.parametrize("kind", ["code", "garbage", "shape", "vocabulary", "incomplete"])
def test_bad_checkpoints_are_one_line_and_run_no_code(experiment, tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.pth"
    weights = torch.load(experiment.model, weights_only=True)
    if kind == "code":
        torch.save({"weight": Exploit()}, path)
    elif kind == "garbage":
        path.write_bytes(pickle.dumps("nothing")[:-3])
    elif kind == "shape":
        weights["encoder.whisper.conv1.weight"] = torch.zeros(16, 80, 3)
        torch.save(weights, path)
    elif kind == "vocabulary":
        weights["decoder.whisper.embed_tokens.weight"] = torch.zeros(99, 32)
        torch.save(weights, path)
    else:
        del weights["decoder.heads.heads.0.layers.0.weight"]
        torch.save(weights, path)
    with pytest.raises(SystemExit) as stopped:
        asr_inference.main([*job(experiment, tmp_path), "--asr_model_file", str(path)])
    message = str(stopped.value)
    assert message.startswith("error:") and "bad.pth" in message and "\n" not in message
    assert not (tmp_path / "exploited").exists()


def test_stock_espnet_with_the_plugin_writes_the_same(experiment, tmp_path):
    job(experiment, tmp_path, write_good(tmp_path, 3))
    options = [*experiment.options(), *data(tmp_path), "--beam_size", "3", "--ctc_weight", "0.3"]
    options += ["--maxlenratio", "-8", "--nbest", "2"]
    stock = [sys.executable, "-m", "espnet_medusa.bin.python", "-m", "espnet2.bin.asr_inference"]
    subprocess.run([*stock, *options, "--output_dir", tmp_path / "stock"], check=True)
    asr_inference.main([*options, "--output_dir", str(tmp_path / "ours")])
    for rank in ("1best_recog", "2best_recog"):
        names = {path.name for path in (tmp_path / "stock" / rank).iterdir()}
        assert names == {"text", "token", "token_int", "score"}
        for name in names - {"score"}:
            ours, theirs = (tmp_path / side / rank / name for side in ("ours", "stock"))
            assert ours.read_text() == theirs.read_text()
        ours, theirs = (read_lines(tmp_path / side / rank / "score") for side in ("ours", "stock"))
        for key, score in theirs.items():
            # Both are written as ESPnet writes them: tensor(-12.3456).
            assert ours[key].startswith("tensor(") and ours[key].endswith(")")
            assert float(ours[key][7:-1]) == pytest.approx(float(score[7:-1]), abs=1e-3)


def test_speech2text_has_espnets_signature_and_result(experiment):
    settings = {"asr_train_config": str(experiment.config), "asr_model_file": str(experiment.model)}
    speech = 0.1 * np.random.default_rng(0).standard_normal(8000).astype(np.float32)
    texts = []
    for draft_depth in (0, None):
        speech2text = Speech2Text(
            *settings.values(), search="greedy", draft_depth=draft_depth, maxlenratio=-12
        )
        [(text, token, token_int, hypothesis)] = speech2text(speech)
        assert hypothesis.yseq.tolist()[0] == hypothesis.yseq.tolist()[-1] == 13
        assert len(token) == len(token_int)
        texts.append(text)
    assert texts[0] == texts[1]
    nbest = Speech2Text(**settings, beam_size=3, ctc_weight=0.3, nbest=2, maxlenratio=-8)(speech)
    assert len(nbest) == 2 and nbest[0][3].score >= nbest[1][3].score
