"""conf/train/whisper_*.yaml through asr_train: what trains, stops, resumes; two processes."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from espnet2.tasks.abs_task import optim_classes
from experiment import write_noise
from tiny_whisper import save_tiny_whisper
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import Adafactor, PreTrainedTokenizerFast, WhisperForConditionalGeneration

from espnet_medusa import plugin
from espnet_medusa.bin import asr_train
from espnet_medusa.stages import aggregate_stats, collect_shapes, run_training
from espnet_medusa.whisper.tokens import END, START

CONFIGS = Path(__file__).resolve().parents[2] / "conf" / "train"
LAST_LAYER = "decoder.whisper.layers.1."
TRAINED = {  # system: what its training changes
    "finetune": ("decoder.whisper.",),
    "linear": (LAST_LAYER, "decoder.heads.", "decoder.token_counts"),
    "block": ("decoder.heads.", "decoder.token_counts"),
    "recurrent": ("decoder.heads.", "decoder.token_counts"),
    "ctc": ("ctc.",),
}


def save_tokenizer_of_bytes(folder: Path) -> list[str]:
    """Whisper's special tokens behind the 256 bytes: small and soon read. Returns the tokens."""
    special = [END, START, "<|en|>", "<|transcribe|>", "<|translate|>", "<|startoflm|>"]
    special += ["<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    tokens = [*sorted(ByteLevel.alphabet()), *special]
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)
    return tokens


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A random Whisper with its tokens, sixteen noises, texts."""
    folder = tmp_path_factory.mktemp("corpus")
    tokens = save_tokenizer_of_bytes(folder / "tokenizer")
    (folder / "tokens.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    save_tiny_whisper(folder / "whisper", vocab_size=len(tokens))
    rng = np.random.default_rng(0)
    tables = {name: {} for name in ("wav.scp", "text", "even_text")}
    for index in range(16):
        write_noise(folder / f"{index}.wav", 0.3 + 0.01 * index, seed=index)
        words = list(rng.choice(list("abcdefghijklm"), 12))
        tables["wav.scp"][f"u{index}"] = folder / f"{index}.wav"
        tables["text"][f"u{index}"] = " ".join(words[: 1 + index % 6])
        tables["even_text"][f"u{index}"] = " ".join(words[:2])
    for name, table in tables.items():
        write_lines(folder / name, table)
    return folder


def write_lines(path: Path, table: dict) -> None:
    path.write_text("".join(f"{key} {value}\n" for key, value in table.items()))


def command_of(corpus, output, system, text="text", **changes) -> list[str]:
    """asr_train's options: the YAML, the tiny Whisper and data in the place of the real ones."""
    config = yaml.safe_load((CONFIGS / f"whisper_{system}.yaml").read_text(encoding="utf-8"))
    for half in ("encoder_conf", "decoder_conf"):
        config[half]["whisper_model"] = str(corpus / "whisper")
    config["encoder_conf"]["pad_to_window"] = False  # less to compute
    config |= {"num_workers": 0, "use_tensorboard": False, "use_matplotlib": False} | changes
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".yaml").write_text(yaml.safe_dump(config))
    options = ["--config", output.with_suffix(".yaml"), "--output_dir", output, "--ngpu", "0"]
    options += ["--token_list", corpus / "tokens.txt", "--bpemodel", corpus / "tokenizer"]
    for part in ("train", "valid"):
        options += [f"--{part}_data_path_and_name_and_type", f"{corpus}/wav.scp,speech,sound"]
        options += [f"--{part}_data_path_and_name_and_type", f"{corpus}/{text},text,text"]
    return list(map(str, options))


def shapes(*files: Path) -> list[str]:
    """The same shape files for training and validation."""
    return [
        word for part in ("train", "valid") for path in files
        for word in (f"--{part}_shape_file", str(path))
    ]  # fmt: skip


def train(corpus, output, system, *options, **changes) -> Path:
    """Train on all utterances, shortest audio first; returns ``output``."""
    keys = output.parent / "speech_shape"
    command = command_of(corpus, output, system, **changes)
    lines = (corpus / "wav.scp").read_text().splitlines()
    write_lines(keys, {line.split()[0]: 4800 + index for index, line in enumerate(lines)})
    asr_train.main([*command, *shapes(keys), *options])
    return output


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)


def losses(output: Path, part: str) -> dict[int, float]:
    """Loss by epoch, as ESPnet's reporter has it."""
    state = torch.load(output / "checkpoint.pth", weights_only=False)["reporter"]
    return {epoch: values[part]["loss"] for epoch, values in state["stats"].items()}


@pytest.fixture(scope="module", params=TRAINED)
def trained(request, corpus, tmp_path_factory):
    """Three epochs of one update each, as the YAML says."""
    output = tmp_path_factory.mktemp(request.param) / "exp"
    return request.param, train(corpus, output, request.param, max_epoch=3, keep_nbest_models=3)


def test_a_regime_trains_what_it_should_and_nothing_else(trained, corpus):
    system, output = trained
    for part in ("train", "valid"):
        loss = losses(output, part)
        assert loss[1] > loss[2] > loss[3], part
    assert losses(output, "train")[2] == pytest.approx(loss[1], rel=0.1), "what ESPnet logs"
    whisper = WhisperForConditionalGeneration.from_pretrained(corpus / "whisper").state_dict()
    start, first, last = (
        {
            name.replace("model.encoder.", "encoder.whisper.").replace(
                "model.decoder.", "decoder.whisper."
            ): value
            for name, value in whisper.items()
        },
        weights(output / "1epoch.pth"),
        weights(output / "3epoch.pth"),
    )
    for name, value in last.items():
        if name.startswith(TRAINED[system]):
            assert not torch.equal(value, first[name]), f"{name} did not train"
        elif name in start:
            assert torch.equal(value, start[name]), f"{name} was to stay"
    copy = "decoder.original_last_layer."
    assert any(name.startswith(copy) for name in last) == (system == "linear")
    for name in last:
        if name.startswith(copy):
            assert torch.equal(last[name], start[name.replace(copy, LAST_LAYER)])


def test_every_configuration_is_tried_here():
    assert {path.stem.removeprefix("whisper_") for path in CONFIGS.glob("*.yaml")} == {*TRAINED}


class Killed(Exception):
    """In the middle of an epoch."""


def test_a_killed_run_resumes_to_the_same_weights(trained, corpus, tmp_path, monkeypatch):
    system, output = trained
    steps, step = [], Adafactor.step

    def second_step_fails(self, *arguments):
        steps.append(1)
        if len(steps) == 2:
            raise Killed
        return step(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Adafactor, "step", second_step_fails)
        train(corpus, tmp_path / "exp", system, max_epoch=3)
    resumed = train(corpus, tmp_path / "exp", system, "--resume", "true", max_epoch=3)
    expected, found = (weights(folder / "3epoch.pth") for folder in (output, resumed))
    assert expected.keys() == found.keys()
    assert [name for name, value in expected.items() if not torch.equal(value, found[name])] == []


def test_training_stops_early_and_keeps_the_best(corpus, tmp_path):
    """At a rate that soon makes things worse."""
    optim_conf = {"lr": 0.3, "scale_parameter": False, "relative_step": False}
    output = train(
        corpus, tmp_path / "exp", "finetune", max_epoch=30, patience=1, accum_grad=1,
        optim_conf=optim_conf, scheduler="warmuplr", scheduler_conf={"warmup_steps": 8},
    )  # fmt: skip
    loss = losses(output, "valid")
    best = min(loss, key=loss.get)
    assert max(loss) == best + 2 < 30
    kept = weights(output / f"{best}epoch.pth")
    for name in ("valid.loss.best.pth", "valid.loss.ave.pth"):
        found = weights(output / name)
        assert all(torch.equal(found[key], value) for key, value in kept.items()), name


def test_two_processes_take_the_step_of_one(corpus, tmp_path):
    """Heads without a label in any utterance, frozen parts; gradients, so plain descent."""
    changes = {
        "text": "even_text", "max_epoch": 1, "batch_size": 16, "accum_grad": 1, "optim": "sgd",
        "optim_conf": {"lr": 1.0},
    }  # fmt: skip
    alone = train(corpus, tmp_path / "alone", "linear", **changes)
    command = command_of(corpus, tmp_path / "both", "linear", **changes)
    command += shapes(tmp_path / "speech_shape")
    log = ["--log", str(tmp_path / "both" / "train.log"), "--nj", "2", "--"]
    run_training.main([*log, sys.executable, "-m", "espnet_medusa.bin.asr_train", *command])
    expected, found = (weights(path / "1epoch.pth") for path in (alone, tmp_path / "both"))
    counts = "decoder.token_counts"
    assert found.pop(counts).sum() == expected.pop(counts).sum() / 2, "rank 0's share"
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)
    assert found["decoder.heads.heads.0.layers.0.weight"].abs().max() > 1e-3, "it was a step"


def test_a_text_beyond_the_decoders_positions_is_found_in_stage_10(corpus, tmp_path, capsys):
    keys, stats = tmp_path / "keys", tmp_path / "stats"
    texts = {f"u{index}": "a b c" for index in range(3)} | {"u3": 444 * "a"}
    audio = dict(line.split() for line in (corpus / "wav.scp").read_text().splitlines())
    data = tmp_path / "data"
    shutil.copytree(corpus, data)
    write_lines(data / "text", texts)
    write_lines(data / "wav.scp", {key: audio[key] for key in texts})
    write_lines(keys, dict.fromkeys(texts, 1))
    command = command_of(data, stats / "job.1", "block")
    asr_train.main([*command, "--collect_stats", "true", *shapes(keys)])
    aggregate_stats.main(
        ["--jobs", "1", "--job_dir", str(stats / "job.JOB"), "--output_dir", str(stats)]
        + ["--token_list", str(corpus / "tokens.txt"), "--token_type", "hugging_face"]
        + ["--sum_stats", "false"]
    )
    told = "left out 1 whose text is longer than the decoder's 447 tokens (u3: 448)"
    assert told in capsys.readouterr().out
    for part in ("train", "valid"):
        assert (stats / part / "long_texts").read_text() == "u3 448\n"
        for name in ("speech_shape", "text_shape", "text_shape.hugging_face"):
            lines = (stats / part / name).read_text().splitlines()
            assert [line.split()[0] for line in lines] == ["u0", "u1", "u2"], name
    shutil.rmtree(stats / "train")
    write_lines(data / "utt2spk", {key: key for key in texts})
    write_lines(data / "utt2num_samples", dict.fromkeys(texts, 4800))
    sets = [f"--{part}_dir={data}" for part in ("train", "valid")]
    collect_shapes.main([*sets, "--output_dir", str(stats), "--", *command])
    assert told in capsys.readouterr().out
    assert "u3" not in (stats / "train" / "text_shape.hugging_face").read_text()
    # Who trains on them all the same is told so, not by an index error.
    command = command_of(data, tmp_path / "exp", "block", max_epoch=1)
    with pytest.raises(SystemExit, match="^error: u3: a text of 448 tokens; .* positions for 447"):
        asr_train.main([*command, *shapes(keys)])


def test_adafactor_is_transformers_unless_espnet_has_one(monkeypatch):
    assert optim_classes["adafactor"] is Adafactor
    monkeypatch.setitem(optim_classes, "adafactor", torch.optim.SGD)
    plugin.register()
    assert optim_classes["adafactor"] is torch.optim.SGD
