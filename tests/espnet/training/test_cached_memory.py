"""A Speech-LLaMA on cached encoder output has the losses of training on audio."""

from pathlib import Path

import kaldiio
import pytest
import soundfile
import torch
import yaml
from cases import cases
from experiment import read_lines
from refusals import command_refused, refuses
from whisper_training import for_both_sets, losses, make_corpus, run_training, weights

from espnet_medusa.bin import stage
from espnet_medusa.espnet.task import MedusaASRTask
from espnet_medusa.espnet.training import cached_memory
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

CONF = Path(__file__).resolve().parents[3] / "egs" / "librispeech" / "asr1" / "conf"
LLAMA = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 24}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Noises of the length of a few frames, with a random Whisper, and tokens of letters."""
    folder = make_corpus(tmp_path_factory.mktemp("corpus"))
    tokens = ["<blank>", "<unk>", "<space>", *"abcdefghijklm", "<sos/eos>"]
    (folder / "letters.txt").write_text("\n".join(tokens) + "\n")
    return folder


def command_of(corpus, output: Path, kind: str = "", **changes) -> list[str]:
    """Return asr_train's options without data: a small version of the recipe's config."""
    config = yaml.safe_load((CONF / f"train_speech_llama_whisper{kind}.yaml").read_text())
    config["encoder_conf"] |= {"whisper_model": str(corpus / "whisper")}
    config["decoder_conf"] |= {"llama_conf": LLAMA, "dropout_rate": 0.0}
    for name in ("encoder_conf", "model_conf"):
        config[name] |= changes.pop(name, {})
    config |= {"max_epoch": 2, "use_matplotlib": False, "scheduler": None, "scheduler_conf": {}}
    config |= changes
    output.mkdir(parents=True, exist_ok=True)
    path = output.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config))
    options = ["--config", path, "--output_dir", output, "--ngpu", "0"]
    options += ["--token_list", corpus / "letters.txt", "--token_type", "char"]
    return list(map(str, options))


def train(corpus, output: Path, data: str | None, command: list[str]) -> Path:
    data = filter(None, (data, f"{corpus}/text,text,text"))
    return run_training(output, *command, *for_both_sets("data_path_and_name_and_type", *data))


def cache(corpus, folder: Path, command: list[str], data_dir: Path | None = None) -> Path:
    stage.main(["cache_memory", "--data_dir", str(data_dir or corpus),
         "--output_dir", str(folder), "--batch_size", "3", "--", *command]
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def cached(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cached")
    return cache(corpus, folder / "memory", command_of(corpus, folder / "exp"))


@cases(("", {}), ("_latent", {"ctc_weight": 0.3}), ids=["baseline", "latent and CTC"])
def test_losses_are_those_of_audio(kind, model_conf, corpus, cached, tmp_path):
    exps = []
    for name, data in (
        ("audio", f"{corpus}/wav.scp,speech,sound"),
        ("memory", f"{cached}/memory.scp,memory,numpy_ark"),
    ):
        output = tmp_path / name / "exp"
        command = command_of(corpus, output, kind, model_conf=model_conf)
        exps.append(train(corpus, output, data, command))
    for part in ("train", "valid"):
        there, here = (losses(exp, part) for exp in exps)
        assert there[2] < there[1], "it learns"
        assert [*here.values()] == pytest.approx([*there.values()], rel=2e-3), part
    trained = weights(exps[1] / "latest.pth")
    encoder = HFWhisperEncoder(whisper_model=str(corpus / "whisper"))
    for name, weight in encoder.state_dict().items():
        assert torch.equal(trained[f"encoder.{name}"], weight), "the encoder is frozen"


def test_memory_is_the_prefix_that_decoding_reads(corpus, cached, tmp_path):
    exp = train(
        corpus, tmp_path / "exp", f"{cached}/memory.scp,memory,numpy_ark",
        command_of(corpus, tmp_path / "exp", "_latent", max_epoch=1),
    )  # fmt: skip
    speech2text = Speech2Text(
        exp / "config.yaml", exp / "1epoch.pth",
        search="greedy", beam_size=1, ctc_weight=0.0, lm_weight=0.0, maxlenratio=-5.0,
    )  # fmt: skip
    encoder_out = kaldiio.load_scp(str(cached / "memory.scp"))
    paths = read_lines(corpus / "wav.scp")
    samples = [soundfile.read(path, dtype="float32")[0] for path in paths.values()]
    found, frames = speech2text.model.encode(speech2text.model.batch(samples))
    assert len(set(frames.tolist())) > 4
    for row, (key, speech) in enumerate(zip(paths, samples, strict=True)):
        assert len(encoder_out[key]) == frames[row] == -(-(len(speech) // 160) // 2)
        expected = torch.tensor(encoder_out[key]).float()
        torch.testing.assert_close(found[row, : frames[row]], expected, rtol=1e-3, atol=1e-3)
    for speech, decoding in zip(samples[::5], speech2text.decode(samples[::5]), strict=True):
        assert speech2text(speech)[0][2] == decoding.results[0][2]


def test_another_encoder_is_refused(corpus, cached, tmp_path, capsys):
    command = command_of(corpus, tmp_path / "exp", encoder_conf={"crop_to_audio": False})
    with command_refused(capsys, "another encoder", cached_memory.SETTINGS_FILE):
        cache(corpus, cached, command)
    again = cache(corpus, cached, command_of(corpus, tmp_path / "exp", "_latent"))
    assert len(read_lines(again / "memory.scp")) == 16, "heads share the baseline's"


@cases(
    ({"freeze_param": ["encoder.whisper.conv1"]}, "encoder: trains; "),
    ({"encoder_conf": {"use_specaug": True, "specaug_conf": {"apply_time_mask": False}}},
     "specaug: masks other features in each epoch"),
)  # fmt: skip
def test_input_that_changes_in_every_epoch_is_refused(changes, message, corpus, tmp_path, capsys):
    with command_refused(capsys, message):
        cache(corpus, tmp_path / "memory", command_of(corpus, tmp_path / "exp", **changes))


@refuses(
    ({"freeze_param": []}, True, "memory: .* frozen encoder"),
    ({}, False, "speech: missing; train on audio"),
    ({"encoder_conf": {"whisper_model": None, "output_size": 16, "num_blocks": 1,
                       "attention_heads": 2, "linear_units": 16}},
     True, "memory: frames of size 32; .* 16"),
    error=SystemExit,
)  # fmt: skip
def test_mismatched_memory_is_refused(changes, with_memory, corpus, cached, tmp_path):
    data = f"{cached}/memory.scp,memory,numpy_ark" if with_memory else None
    train(corpus, tmp_path / "exp", data, command_of(corpus, tmp_path / "exp", **changes))


def test_initial_weights_are_those_of_training(corpus, cached, tmp_path, capsys):
    """The encoder may come from a checkpoint, as ESPnet's own encoders do."""
    command = command_of(corpus, tmp_path / "exp")
    options = MedusaASRTask.get_parser().parse_args(command)
    weight = MedusaASRTask.build_model(options).encoder.state_dict()
    changed = {f"encoder.{name}": 1.5 * value for name, value in weight.items()}
    torch.save(changed, tmp_path / "start.pth")
    command += ["--init_param", str(tmp_path / "start.pth")]
    other = cache(corpus, tmp_path / "memory", command)
    one, two = (kaldiio.load_scp(str(f / "memory.scp"))["u3"] for f in (cached, other))
    assert one.shape == two.shape and abs(one - two).max() > 0.1
    torch.save({**changed, "unused": torch.zeros(9)}, tmp_path / "start.pth")
    with command_refused(capsys, "other settings (init_param_files)"):
        cache(corpus, tmp_path / "memory", command)
