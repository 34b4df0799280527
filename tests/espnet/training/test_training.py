"""ESPnet's trainer on our model: initial weights, bad configs; what the recipes train."""

import numpy as np
import pytest
import torch
import yaml
from cases import cases
from espnet2.tasks.s2t import S2TTask
from experiment import TOKENS, training_config, write_corpus, write_lines
from recipes import ROOT, link_recipe, record_asr, recorded, run
from refusals import assert_refused, refuses
from tiny_whisper import save_tiny_whisper
from whisper_training import for_both_sets, shapes

from espnet_medusa.bin import asr_train
from espnet_medusa.espnet.task import MedusaASRTask
from espnet_medusa.inference.experiment import NoInitialization

CONF = ROOT / "egs" / "librispeech" / "asr1" / "conf"
V, D, K = 32000, 768, 4  # LibriSpeech's Speech-LLaMA
PUBLISHED = {"_latent": 234e6, "_projection": 306e6}
LAST = "decoder.whisper.layers.0."
COPIES = {  # of the last layer, by heads
    "block": "heads.block", "recurrent": "heads.block", "attending": "heads.layer",
    "linear": "original_last_layer",
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rng, seconds = np.random.default_rng(0), {f"u{index}": 0.4 + 0.1 * index for index in range(8)}
    write_corpus(folder, seconds)
    texts = {key: "".join(rng.choice(list("abcdefghij"), 5)) for key in seconds}
    write_lines(folder / "text", texts)
    write_lines(folder / "speech_shape", {key: int(16000 * s) for key, s in seconds.items()})
    write_lines(folder / "text_shape", dict.fromkeys(seconds, f"5,{len(TOKENS)}"))
    (folder / "tokens.txt").write_text("\n".join(TOKENS) + "\n")
    return folder


def train(corpus, output, config, *options):
    (output.parent / f"{output.name}.yaml").write_text(yaml.safe_dump(config))
    command = ["--config", str(output.parent / f"{output.name}.yaml")]
    command += ["--token_list", str(corpus / "tokens.txt"), "--output_dir", str(output)]
    data = f"{corpus}/wav.scp,speech,sound", f"{corpus}/text,text,text"
    command += for_both_sets("data_path_and_name_and_type", *data)
    command += shapes(corpus / "speech_shape", corpus / "text_shape")
    asr_train.main([*command, *options])
    return torch.load(output / "1epoch.pth", weights_only=True)


def config_of(heads="block", **changes):
    config = training_config(
        max_epoch=1, batch_type="sorted", batch_size=4, num_workers=0, use_tensorboard=False,
        use_matplotlib=False, num_att_plot=0, optim="adam", optim_conf={"lr": 0.01},
        keep_nbest_models=1, best_model_criterion=[["valid", "acc", "max"]], log_interval=1,
    )  # fmt: skip
    config["decoder_conf"]["heads"] = heads
    config["model_conf"] |= changes.pop("model_conf", {})
    config["decoder_conf"] |= changes.pop("decoder_conf", {})
    return config | changes


@pytest.fixture(scope="module")
def base(corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("base") / "exp"
    return train(corpus, output, config_of("none")), output / "1epoch.pth"


@pytest.mark.parametrize("heads", COPIES)
def test_copies_of_the_loaded_last_layer(corpus, base, tmp_path, heads):
    """Heads are initialized with it; it is the teacher of the divergence."""
    base_weights, base_path = base
    teacher = {"keep_original_last_layer": True} if heads == "linear" else {}
    conf = {"kl_weight": 0.01 if teacher else 0.0}
    config = config_of(heads, optim_conf={"lr": 0.0}, model_conf=conf, decoder_conf=teacher)
    weights = train(corpus, tmp_path / "exp", config, "--init_param", str(base_path))
    for name, value in base_weights.items():
        if name.startswith(LAST):
            copy = f"decoder.{COPIES[heads]}.{name.removeprefix(LAST)}"
            shared = heads == "attending" and copy not in weights  # self-attention, keys, values
            assert shared or torch.equal(weights[copy], value), copy


@pytest.mark.parametrize("heads", ["block", "recurrent", "attending"])
def test_a_trained_block_is_loaded_as_it_is(corpus, tmp_path, heads):
    trained = train(corpus, tmp_path / "first", config_of(heads))
    again = config_of(heads, optim_conf={"lr": 0.0})
    path = str(tmp_path / "first" / "1epoch.pth")
    weights = train(corpus, tmp_path / "second", again, "--init_param", path)
    counts = "decoder.token_counts"
    assert torch.equal(weights.pop(counts), 2 * trained.pop(counts)), "the same labels once more"
    if heads == "attending":
        assert all(part.pop("decoder.heads.moments").trace() > 0 for part in (trained, weights))
    torch.testing.assert_close(weights, trained, rtol=0, atol=0)


@refuses(
    ("nowhere.pth", "nowhere.pth: no such checkpoint"),
    ("{base}:nothing:decoder", "has no tensors under 'nothing'"),
    ("{base}:decoder:dekoder", "the model has no module 'dekoder'"),
    ("{base}:encoder:decoder", "whisper.conv1.weight is not in the model"),
    error=SystemExit,
)
def test_bad_initial_weights_stop_before_training(init_param, corpus, base, tmp_path):
    train(corpus, tmp_path / "exp", config_of(), "--init_param", init_param.format(base=base[1]))


@cases(
    ({"decoder_conf": {"heads": "medusa"}}, "decoder_conf.heads: 'medusa'.*none, linear"),
    ({"model_conf": {"kl_weigth": 1}}, "model_conf: unknown option 'kl_weigth'.*kl_weight"),
    ({"decoder": "transformer", "decoder_conf": {"heads": "block"}}, "config: .*heads"),
)
def test_bad_configs_are_one_line(changes, message, corpus, tmp_path):
    given = corpus, tmp_path / "exp", config_of(**changes)
    assert_refused(f"^error: .*{message}", train, *given, error=SystemExit)


def test_every_recipe_config_builds_its_model(tmp_path):
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("\n".join([*TOKENS, "<na>", "<sos>", "<eos>", "<sop>"]) + "\n")
    configs = sorted(ROOT.glob("egs/*/*/conf/train_*.yaml"))
    pretrained = {path.resolve() for path in ROOT.glob("conf/train/whisper_*.yaml")}
    configs = [path for path in configs if path.resolve() not in pretrained]
    assert configs
    whisper = save_tiny_whisper(tmp_path / "whisper")
    for config in configs:
        command = ["--config", config, "--token_list", tokens, "--output_dir", tmp_path / "exp"]
        if "whisper_model:" in config.read_text(encoding="utf-8"):
            command += ["--encoder_conf", f"whisper_model={whisper}"]
        task = S2TTask if "s2t1" in config.parts else MedusaASRTask
        with NoInitialization():
            task.main(cmd=[*map(str, command), "--dry_run", "true"])


def size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_those_of_the_paper(tmp_path):
    tokens = tmp_path / "tokens.txt"
    words = ["<blank>", "<unk>", *(f"word{index}" for index in range(V - 3)), "<sos/eos>"]
    tokens.write_text("\n".join(words) + "\n")

    def build(kind: str) -> torch.nn.Module:
        command = ["--config", CONF / f"train_speech_llama{kind}.yaml", "--token_list", tokens]
        command = [*map(str, command), "--output_dir", "unused"]
        with torch.device("meta"):
            return MedusaASRTask.build_model(MedusaASRTask.get_parser().parse_args(command))

    models = {kind: build(kind) for kind in ("", *PUBLISHED)}
    for kind, published in PUBLISHED.items():
        assert size(models[kind]) == pytest.approx(published, rel=0.03)
        assert size(models[kind].encoder) == pytest.approx(100e6, rel=0.03)
        assert size(models[kind].decoder.llama) == pytest.approx(125e6, rel=0.03)
        assert models[kind].decoder.projection.shape == (V, D)
        assert models[kind].decoder.num_heads == K - 1
    heads = [size(models[kind]) - size(models[""]) for kind in PUBLISHED]
    assert heads == [K * D**2, (K - 1) * D * V], "what the paper derives"


def assert_options(call: dict[str, str], **expected: str) -> None:
    assert {name: call[f"--{name}"] for name in expected} == expected


def test_recipe_trains_the_baseline_then_heads_on_it(tmp_path):
    folder = link_recipe(tmp_path, "librispeech/asr1")
    record_asr(folder)
    options = ["--part", 100, "--stop_stage", 11, "--ngpu", 8]
    run(folder, "./run_speech_llama.sh", *options, status=0)
    base, *heads = recorded(folder)
    data = "--part 100 --nj 4 --test_sets test_clean test_other --librispeech_pc false"
    expected = {"asr_tag": "speech_llama", "pretrained_model": "", "stage": "1"}
    assert_options(base, local_data_opts=data, **expected)
    for kind, call in zip(("projection", "latent"), heads, strict=True):
        assert_options(
            call, asr_config=f"conf/train_speech_llama_{kind}.yaml",
            asr_args=f"--decoder_conf heads_conf.num_heads={K - 1} ",
            asr_tag=f"speech_llama_{kind}_4",
            pretrained_model="exp/asr_speech_llama/valid.acc.ave.pth",
            train_set="train_clean_100", nbpe="32000", ngpu="8",
        )  # fmt: skip


def test_heads_on_whisper_differ_only_in_their_kind():
    names = (f"train_speech_llama_whisper{kind}.yaml" for kind in ("", "_latent", "_projection"))
    base, latent, projection = (yaml.safe_load((CONF / name).read_text()) for name in names)
    assert latent["decoder_conf"].pop("heads") == "latent"
    assert projection["decoder_conf"].pop("heads") == "projection"
    assert latent == projection
    assert latent["decoder_conf"].pop("heads_conf") == {"num_heads": K - 1}
    for name in ("encoder_conf", "decoder_conf", "freeze_param"):
        assert latent[name] == base[name]
