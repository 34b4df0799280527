"""ESPnet3's ASR task builds our networks in each process that imports the package."""

import logging

import pytest
import sentencepiece
from espnet2.text.build_tokenizer import build_tokenizer
from experiment import TOKENS, training_config

from espnet_medusa.inference.decoding import open_tokenizer

task_utils = pytest.importorskip("espnet3.utils.task_utils", reason="ESPnet 202511 has no ESPnet3")


@pytest.mark.parametrize(
    "task", ["espnet3.systems.esp2_asr.task.ASRTask", "espnet_medusa.espnet.task.MedusaASRTask"]
)
def test_the_task_knows_our_networks(task):
    model = task_utils.get_espnet_model(task, training_config() | {"token_list": TOKENS})
    kinds = type(model).__name__, type(model.encoder).__name__, model.decoder.num_heads
    assert kinds == ("MedusaASRModel", "HFWhisperEncoder", 3)


def test_models_with_an_open_sentencepiece_file_can_be_logged(tmp_path, caplog):
    from espnet3.utils.logging_utils import log_instance_dict

    text = tmp_path / "text"
    text.write_text("abc abd\n" * 50)
    options = {"vocab_size": 12, "model_prefix": str(tmp_path / "bpe"), "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.Train(input=str(text), hard_vocab_limit=False, **options)
    tokenizer = build_tokenizer("bpe", str(tmp_path / "bpe.model"))
    open_tokenizer(tokenizer)
    caplog.set_level("INFO")
    log_instance_dict(logging.getLogger("env"), kind="Env", entries={"t": tokenizer}, max_depth=2)
    assert "Swig Object" in caplog.text
