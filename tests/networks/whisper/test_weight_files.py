"""The files of a Whisper in transformers' layouts, in folders and on the hub; PEFT's adapters."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from cases import cases
from refusals import assert_refused
from safetensors.torch import load_file, save_file
from tiny_whisper import save_tiny_whisper
from transformers import WhisperForConditionalGeneration

from espnet_medusa.networks.whisper.pretrained import DECODER, is_whisper, open_whisper


def save_shards(folder: Path, stem: str, suffix: str, index: str) -> None:
    """Replace the weights by two shards and their index."""
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    placed = {}
    for number, names in enumerate((sorted(whole)[::2], sorted(whole)[1::2]), 1):
        file = f"{stem}-0000{number}-of-00002{suffix}"
        part = {name: whole[name] for name in names}
        save = torch.save if suffix == ".bin" else save_file
        save(part, folder / file)
        placed |= dict.fromkeys(names, file)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": placed}))


LAYOUTS = [  # stem, suffix, variant
    ("pytorch_model", ".bin", ""), ("model", ".safetensors", ".fp16"),
    ("pytorch_model", ".bin", ".fp16"),
]  # fmt: skip


@cases(*((*layout, sharded) for layout in LAYOUTS for sharded in (False, True)))
def test_all_layouts_of_transformers(stem, suffix, variant, sharded, tmp_path):
    folder = save_tiny_whisper(tmp_path / "whisper", 40, hidden_size=8)
    expected = open_whisper(str(folder)).weights(DECODER)
    if sharded:
        save_shards(folder, f"{stem}{variant}", suffix, f"{stem}{suffix}.index{variant}.json")
    else:
        whole = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        save = torch.save if suffix == ".bin" else save_file
        save(whole, folder / f"{stem}{variant}{suffix}")
    theirs = WhisperForConditionalGeneration.from_pretrained(
        folder, variant=variant.removeprefix(".") or None
    )
    opened = open_whisper(str(folder))
    assert len(opened.files) == 1 + sharded
    found = opened.weights(DECODER)
    torch.testing.assert_close(dict(found), dict(expected), rtol=0, atol=0)
    torch.testing.assert_close(dict(found), dict(theirs.model.decoder.state_dict()), rtol=0, atol=0)
    opened.files[0].unlink()
    lacking = opened.files[0].name if sharded else "model.safetensors"
    assert_refused(f"lacks {lacking}; fetch it again", open_whisper, str(folder))


def test_a_stale_index_beside_a_whole_file_is_ignored(tmp_path):
    folder = save_tiny_whisper(tmp_path / "whisper", 40, hidden_size=8)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}))
    assert open_whisper(str(folder)).files == (folder / "model.safetensors",)


def test_a_folder_with_one_checkpoint_is_opened(tmp_path):
    """Trainer saves checkpoints in folders of its output folder."""
    save_tiny_whisper(tmp_path / "out" / "checkpoint-10", 40, hidden_size=8)
    opened = open_whisper(str(tmp_path / "out"))
    assert opened.files == (tmp_path / "out" / "checkpoint-10" / "model.safetensors",)
    save_tiny_whisper(tmp_path / "out" / "checkpoint-20", 40, hidden_size=8)
    message = "give one of them: checkpoint-10, checkpoint-20"
    assert_refused(message, open_whisper, str(tmp_path / "out"))


def test_an_adapter_has_to_be_merged(tmp_path, monkeypatch):
    folder = save_tiny_whisper(tmp_path / "adapter", 40, hidden_size=8)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "openai/whisper-x"}')
    assert open_whisper(str(folder)).files, "merged already"
    (folder / "model.safetensors").unlink()
    message = "PEFT adapter.*merge it first: model = .*'openai/whisper-x'.*; model.merge_and_unload"
    assert_refused(message, open_whisper, str(folder))
    (folder / "config.json").unlink()
    assert_refused(message, open_whisper, str(folder))
    fetch = Mock(return_value=str(folder))
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert_refused(message, open_whisper, "somebody/adapter")

    def only_adapter(repository, file):
        if file == "config.json":
            raise OSError("no such file")
        return str(folder / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", only_adapter)
    assert is_whisper("somebody/adapter")


@pytest.mark.parametrize("name", ["somebody/whisper/best", "somebody/whisper"])
def test_a_subfolder_of_the_hub(name, tmp_path, monkeypatch):
    folder = save_tiny_whisper(tmp_path / "best", 40, hidden_size=8)
    fetch = Mock(return_value=str(tmp_path))
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert open_whisper(name).files == (folder / "model.safetensors",)
    assert {call.args for call in fetch.call_args_list} == {("somebody/whisper",)}
    assert "best/model.safetensors" in fetch.call_args_list[-1].kwargs["allow_patterns"]
