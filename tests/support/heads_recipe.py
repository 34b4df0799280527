"""A recipe folder as benchmarks need it: heads on a frozen base, and a little noise."""

from pathlib import Path

import torch
from experiment import make_experiment, training_config, write_noise


def make_recipe(folder: Path, num_utterances: int = 2) -> Path:
    """Recurrent heads on a random base, and utterances of noise with references."""
    sizes = training_config()["decoder_conf"]
    conf = {"decoder_conf": sizes | {"heads": "recurrent"}}
    heads = make_experiment(folder / "exp" / "asr_recurrent", **conf)
    base = make_experiment(
        folder / "exp" / "asr_base", decoder_conf=sizes | {"heads": "none", "heads_conf": {}}
    )
    weights = torch.load(heads.model)
    torch.save(weights, heads.folder / "valid.acc_heads.ave.pth")
    of_heads = ("decoder.heads.", "decoder.token_counts")
    frozen = {name: weight for name, weight in weights.items() if not name.startswith(of_heads)}
    for name in ("valid.acc.ave.pth", base.model.name):
        torch.save(frozen, base.folder / name)
    data_dir = folder / "data"
    data_dir.mkdir()
    lines = {"wav.scp": "", "text": ""}
    for index, name in enumerate("abcdefgh"[:num_utterances]):
        write_noise(data_dir / f"{index}.wav", 0.8 + 0.4 * (index % 3), index)
        lines["wav.scp"] += f"{name} data/{index}.wav\n"
        lines["text"] += f"{name} {'ab cd' if index % 2 == 0 else 'ef'}\n"
    for name, text in lines.items():
        (data_dir / name).write_text(text)
    return folder
