"""An experiment of stock ESPnet, which knows nothing of us."""

from argparse import Namespace

import torch
import yaml
from espnet2.tasks.asr import ASRTask
from experiment import TOKENS, Experiment


def stock_experiment(folder, encoder="conformer", **changes) -> Experiment:
    """What ``espnet2.bin.asr_train`` leaves, with random weights."""
    sizes = {"attention_heads": 2, "linear_units": 48, "num_blocks": 2}
    config = {
        "encoder": encoder,
        "encoder_conf": {"output_size": 32, "input_layer": "conv2d2", **sizes},
        "decoder": "transformer", "decoder_conf": sizes, "token_type": "char",
        "frontend_conf": {"n_fft": 256, "hop_length": 128, "n_mels": 24},
        "normalize": "utterance_mvn",
        "model_conf": {"ctc_weight": 0.3, "report_cer": False, "report_wer": False},
    } | changes  # fmt: skip
    train(ASRTask, folder, config)
    return Experiment(folder)


def train(task, folder, config) -> None:
    """The folder as ESPnet's own task makes it, no training in between."""
    folder.mkdir(parents=True)
    (folder / "tokens.txt").write_text("\n".join(TOKENS) + "\n")
    (folder / "train.yaml").write_text(yaml.safe_dump(config))
    command = ["--config", folder / "train.yaml", "--token_list", folder / "tokens.txt"]
    task.main(cmd=[*map(str, command), "--output_dir", str(folder), "--dry_run", "true"])
    torch.manual_seed(0)
    written = yaml.safe_load((folder / "config.yaml").read_text())
    model = task.build_model(Namespace(**written))
    for name, parameter in model.named_parameters():
        if not name.startswith("encoder"):
            torch.nn.init.normal_(parameter, std=0.3)
    torch.save(model.state_dict(), folder / "model.pth")


def files(experiment):
    return {"asr_train_config": str(experiment.config), "asr_model_file": str(experiment.model)}


def nbest(results):
    """ESPnet's results as plain values, without those of intermediate CTC."""
    results = results[0] if isinstance(results, tuple) else results
    rows = [(text, tokens, ids, hyp.yseq.tolist()) for text, tokens, ids, hyp in results]
    return rows, [float(hypothesis.score) for *_, hypothesis in results]
