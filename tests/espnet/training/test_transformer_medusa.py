"""ESPnet's transformer decoder with heads: weights, losses, training by ESPnet's own s2t_train."""

import copy
from argparse import Namespace

import pytest
import torch
import yaml
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from espnet2.bin import s2t_train
from espnet2.tasks.s2t import S2TTask
from experiment import dry_run, write_corpus, write_lines
from refusals import refuses
from s2t_experiment import NETWORKS, SIZES, TOKENS, make_s2t_experiment, medusa_config
from whisper_training import for_both_sets, shapes

from espnet_medusa.data.options import read_config
from espnet_medusa.espnet.task import MedusaASRTask
from espnet_medusa.inference.s2t import S2TSpeech2Text
from espnet_medusa.networks.espnet_transformer import NAMES, TransformerMedusaDecoder

HEADS = ["linear", "block", "recurrent", "attending", "latent"]


def random_decoder(seed: int, heads: str = "none", **options) -> TransformerMedusaDecoder:
    torch.manual_seed(seed)
    conf = {"heads": heads, "heads_conf": {"num_heads": 3}, "num_blocks": 2, **SIZES, **options}
    decoder = TransformerMedusaDecoder(len(TOKENS), 32, **conf)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return decoder.eval()


@pytest.mark.parametrize("options", [{}, {"normalize_before": False}, {"concat_after": True}])
def test_whole_sequences_equal_espnets(options):
    decoder, generator = random_decoder(0, **options), torch.Generator().manual_seed(0)
    encoder_out, lengths = torch.randn(3, 9, 32, generator=generator), torch.tensor([9, 1, 4])
    tokens = torch.randint(0, len(TOKENS), (3, 8), generator=generator)
    expected, _ = decoder.transformer(encoder_out, lengths, tokens, torch.full((3,), 8))
    logits, _ = decoder(encoder_out, lengths, tokens, torch.full((3,), 8))
    torch.testing.assert_close(logits, expected)
    branches = torch.cat([tokens, tokens.flip(1)], dim=1)
    hidden = decoder.hidden_states(encoder_out, lengths, branches, branches=2).hidden
    torch.testing.assert_close(decoder.logits(hidden[:, :8]), expected)
    other, _ = decoder.transformer(encoder_out, lengths, tokens.flip(1), torch.full((3,), 8))
    torch.testing.assert_close(decoder.logits(hidden[:, 8:]), other)


@pytest.mark.parametrize("heads", HEADS)
def test_weights_of_a_decoder_without_heads_fit(heads):
    base = random_decoder(1).transformer
    conf = {"heads": heads, "heads_conf": {"num_heads": 3}, "num_blocks": 2}
    decoder = TransformerMedusaDecoder(len(TOKENS), 32, **conf, **SIZES)
    # As ESPnet loads a checkpoint: over the model's own state.
    decoder.load_state_dict(copy.copy(decoder.state_dict() | base.state_dict()))
    torch.testing.assert_close(decoder.transformer.state_dict(), base.state_dict(), rtol=0, atol=0)
    last = base.decoders[-1].state_dict()
    if heads in ("block", "recurrent"):
        assert all(torch.equal(decoder.heads.block.state_dict()[name], last[name]) for name in last)
    if heads == "attending":
        copied = decoder.heads.layer.state_dict()
        assert len(copied) == 12
        for name, value in copied.items():
            module, _, kind = name.rpartition(".")
            assert torch.equal(value, last[f"{NAMES[module]}.{kind}"])


@refuses(
    ({"heads": "projection"}, "decoder_conf.heads: projection"),
    ({"num_layers": 2}, "decoder_conf.num_layers"),
    ({"layer_drop_rate": 0.1}, "decoder_conf.layer_drop_rate: 0.1"),
    ({"use_output_layer": False}, "decoder_conf: use_output_layer: false"),
    ({"heads": "attending", "concat_after": True}, "decoder_conf.concat_after: true"),
)
def test_bad_options_are_refused(options):
    random_decoder(0, **options)


def make_models(tmp_path, heads: str, **model_conf):
    """Return ESPnet's model, and ours with its weights, in training mode."""
    base = make_s2t_experiment(tmp_path / "base", 5)
    ours = make_s2t_experiment(tmp_path / heads, 6, **medusa_config(heads, **model_conf))
    configs = [read_config(files["s2t_train_config"], "") for files in (base, ours)]
    models = [S2TTask.build_model(Namespace(**config)) for config in configs]
    weights = torch.load(base["s2t_model_file"])
    models[0].load_state_dict(weights)
    models[1].load_state_dict(models[1].state_dict() | weights)
    for model in models:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    return models


def s2t_batch() -> dict[str, torch.Tensor]:
    """Return three utterances: one without previous text, one without text for CTC."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(110, len(TOKENS) - 3, (3, 6), generator=generator)
    texts[1, 4:], before = -1, texts.flip(1)[:, :4].contiguous()
    before[0], before[0, 0], before[2, 2:] = -1, TOKENS.index("<na>"), -1
    ctc = texts.clone()
    ctc[2], ctc[2, 0] = -1, TOKENS.index("<na>")
    batch = {"speech": torch.randn(3, 16000, generator=generator), "text": texts}
    batch |= {"text_prev": before, "text_ctc": ctc}
    lengths = {"speech": [16000] * 3, "text": [6, 4, 6], "text_prev": [1, 4, 2]}
    lengths["text_ctc"] = [6, 4, 1]
    return batch | {f"{name}_lengths": torch.tensor(sizes) for name, sizes in lengths.items()}


def test_the_loss_without_heads_is_espnets(tmp_path):
    theirs, ours = make_models(tmp_path, "none", lsm_weight=0.1)
    theirs.criterion_att.smoothing, theirs.criterion_att.confidence = 0.1, 0.9
    expected, stats, _ = theirs(**s2t_batch())
    loss, our_stats, _ = ours(**s2t_batch())
    torch.testing.assert_close(loss, expected)
    assert our_stats["acc"] == pytest.approx(stats["acc"])
    gradients = {}
    for model, value in ((theirs, expected), (ours, loss)):
        value.backward()
        decoder = getattr(model.decoder, "transformer", model.decoder)
        gradients[model] = [parameter.grad for parameter in decoder.parameters()]
    for gradient, right in zip(gradients[ours], gradients[theirs], strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("heads", HEADS)
def test_head_losses_equal_cross_entropies_of_whole_logits(tmp_path, heads):
    """The oracle has one row at a time, with its own prompt and no padding."""
    _, model = make_models(tmp_path, heads, base_loss_weight=0.0)
    for parameter in model.decoder.heads.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    batch = s2t_batch()
    _, stats, _ = model.eval()(**batch)
    encoder_out, lengths = model.encode(batch["speech"], batch["speech_lengths"])
    losses = [[] for _ in range(3)]
    for row, (text, before) in enumerate(zip(batch["text"], batch["text_prev"], strict=True)):
        text, before = text[text >= 0], before[before >= 0]
        prompt = [model.sos] if row == 0 else [model.sop, *before.tolist(), model.sos]
        whole = [*prompt, *text.tolist(), model.eos]
        tokens, following = torch.tensor([whole[:-1]]), torch.tensor([whole[1:]])
        outputs = model.decoder.hidden_states(encoder_out[row, None], lengths[row, None], tokens)
        unrolled = model.decoder.unroll_heads(outputs, following)
        for head, logits in enumerate(unrolled):
            first = max(len(prompt) - 1 - head - 1, 0)  # the first prediction of a text's token
            rows = logits[0, first:], following[0, head + 1 + first :]
            losses[head].append(torch.nn.functional.cross_entropy(*rows, reduction="sum"))
    for head, sums in enumerate(losses, 1):
        expected = sum(sums) / len(batch["text"])
        assert float(stats[f"loss_head{head}"].detach()) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("heads", ["recurrent", "attending"])
def test_espnets_s2t_train_trains_heads_on_a_frozen_model(tmp_path, heads):
    base = make_s2t_experiment(tmp_path / "base", 3)
    corpus, seconds = tmp_path, {f"u{index}": 1.0 + 0.1 * index for index in range(6)}
    write_corpus(corpus, seconds)
    write_lines(corpus / "text", dict.fromkeys(seconds, "<eng><asr><notimestamps>abcabc"))
    write_lines(corpus / "text.prev", dict.fromkeys(seconds, "<na>"))
    write_lines(corpus / "speech_shape", {key: int(16000 * s) for key, s in seconds.items()})
    write_lines(corpus / "text_shape", dict.fromkeys(seconds, f"9,{len(TOKENS)}"))
    output = tmp_path / "heads"
    conf = {"freeze_whisper": "all", "base_loss_weight": 0.0, "state_weight": 1.0}
    config = read_config(tmp_path / "base" / "train.yaml", "") | medusa_config(heads, **conf)
    config |= {
        "max_epoch": 2, "batch_type": "sorted", "batch_size": 3, "num_workers": 0, "ngpu": 0,
        "output_dir": str(output), "use_matplotlib": False, "use_tensorboard": False,
        "optim": "adam", "optim_conf": {"lr": 0.01}, "log_interval": 1,
        "best_model_criterion": [["valid", "acc_heads", "max"]], "keep_nbest_models": 1,
        "init_param": [str(base["s2t_model_file"])], "num_att_plot": 0,
        "non_linguistic_symbols": str(corpus / "symbols"),
    }  # fmt: skip
    (corpus / "symbols").write_text("\n".join(token for token in TOKENS if len(token) > 1) + "\n")
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config))
    data = [f"{corpus}/wav.scp,speech,sound"]
    for name, file in (("text", "text"), ("text_prev", "text.prev"), ("text_ctc", "text")):
        data.append(f"{corpus}/{file},{name},text")
    command = ["--config", tmp_path / "train.yaml"]
    command += ["--token_list", tmp_path / "base" / "tokens.txt"]
    command += for_both_sets("data_path_and_name_and_type", *data)
    command += shapes(corpus / "speech_shape", corpus / "text_shape")
    s2t_train.main([*map(str, command)])
    weights = torch.load(output / "2epoch.pth", weights_only=True)
    for name, value in torch.load(base["s2t_model_file"]).items():
        name = name.replace("decoder.", "decoder.transformer.", 1) if "decoder." in name else name
        assert torch.equal(weights[name], value)  # the model stays as it was
    assert weights["decoder.token_counts"].sum() > 0
    files = {"s2t_train_config": output / "config.yaml", "s2t_model_file": output / "2epoch.pth"}
    model = S2TSpeech2Text(**files, beam_size=1, ctc_weight=0.0, maxlenratio=-9)
    assert model.search.decoder.heads_trained


def test_asr_task_accepts_base_weights(tmp_path):
    """Heads on an ESPnet model of the ASR task: --init_param names the model without heads."""
    base = TransformerDecoder(len(TOKENS), 32, num_blocks=2, **SIZES).state_dict()
    torch.save({f"decoder.{name}": value for name, value in base.items()}, tmp_path / "base.pth")
    config = NETWORKS | medusa_config("attending") | {"model_conf": {"ctc_weight": 0.3}}
    init = "--init_param", str(tmp_path / "base.pth")
    config = dry_run(MedusaASRTask, tmp_path / "exp", config, *init, tokens=TOKENS)
    decoder = MedusaASRTask.build_initial_model(Namespace(**config)).decoder
    assert all(torch.equal(decoder.transformer.state_dict()[name], base[name]) for name in base)
    assert torch.equal(decoder.heads.layer.fc1.weight, base["decoders.1.feed_forward.w_1.weight"])
