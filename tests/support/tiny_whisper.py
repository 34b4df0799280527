"""Random Whispers in Hugging Face format, as small as they can be."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from experiment import Experiment, make_experiment
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from espnet_medusa.inference.experiment import TrainedModel, read_model
from espnet_medusa.networks.whisper.tokens import END, START, TIMESTAMPS, make_tokenizer

BYTES = 256


def tiny_config(vocab_size: int, hidden_size=32, widening=2, **sizes: int) -> WhisperConfig:
    end = {51864: 50256, 51865: 50257, 51866: 50257}.get(vocab_size, sizes.pop("end", 0))
    return WhisperConfig(
        vocab_size=vocab_size, d_model=hidden_size, encoder_attention_heads=2,
        encoder_ffn_dim=widening * hidden_size, decoder_attention_heads=2,
        decoder_ffn_dim=widening * hidden_size, pad_token_id=end, bos_token_id=end,
        eos_token_id=end, decoder_start_token_id=end + 1, suppress_tokens=None,
        begin_suppress_tokens=None, **{"encoder_layers": 1, "decoder_layers": 2} | sizes,
    )  # fmt: skip


def save_tiny_whisper(
    folder: Path, vocab_size: int = 51865, num_mel_bins=80, hidden_size=32, seed=0, **sizes: int
) -> Path:
    """Write config, weights and generation config like OpenAI's, without a tokenizer."""
    torch.manual_seed(seed)
    config = tiny_config(vocab_size, hidden_size, num_mel_bins=num_mel_bins, **sizes)
    whisper = WhisperForConditionalGeneration(config)
    for parameter in whisper.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    whisper.generation_config = GenerationConfig.from_model_config(config)
    whisper.save_pretrained(folder)
    return Path(folder)


def save_tokenizer_of_bytes(
    folder: Path, languages: Sequence[str] = ("en",), timestamps: bool = False
) -> list[str]:
    """Write a tokenizer of the 256 bytes and Whisper's special tokens; return its tokens."""
    special = [END, START, *(f"<|{code}|>" for code in languages), "<|transcribe|>"]
    special += ["<|translate|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"]
    special += ["<|notimestamps|>", *(TIMESTAMPS if timestamps else ())]
    tokens = [*sorted(ByteLevel.alphabet()), *special]
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)
    return tokens


def save_whisper_of_bytes(
    folder: Path,
    seed: int = 1,
    timestamps: bool = False,
    languages: Sequence[str] = ("de", "en", "fr"),
    **sizes: int,
) -> Path:
    """Save a Whisper with a tokenizer of bytes in its folder.

    It is converted and read ten times faster than one with OpenAI's vocabulary.
    """
    tokens = save_tokenizer_of_bytes(folder, languages, timestamps)
    sizes = {"hidden_size": 8, "seed": seed, "end": BYTES} | sizes
    return save_tiny_whisper(folder, len(tokens), **sizes)


def whisper_experiment(
    folder: Path,
    weights: Path,
    vocab_size: int = 51865,
    window: str = "whisper",
    ctc_weight: float = 0.0,
    **decoder_conf,
) -> Experiment:
    """Make an experiment of a Whisper in Hugging Face format, with prompts in German.

    It has the tokenizer of the Whisper's folder, or otherwise OpenAI's of ``vocab_size`` tokens.
    """
    has_own = (weights / "tokenizer.json").is_file()
    tokenizer = AutoTokenizer.from_pretrained(weights) if has_own else make_tokenizer(vocab_size)
    tokenizer.save_pretrained(folder / "tokenizer")
    pretrained = {"whisper_model": str(weights)}
    return make_experiment(
        folder / "exp", tokens=tokenizer.convert_ids_to_tokens(range(len(tokenizer))),
        keep_weights=True, encoder_conf=pretrained | {"window": window},
        decoder_conf=pretrained | decoder_conf,
        model_conf={
            "ctc_weight": ctc_weight, "report_cer": False, "report_wer": False,
            "extract_feats_in_collect_stats": False, "sym_sos": START, "sym_eos": END,
        },
        token_type="hugging_face", bpemodel=str(folder / "tokenizer"),
        preprocessor="whisper", preprocessor_conf={"language": "de"},
    )  # fmt: skip


def read_whisper_experiment(experiment: Experiment) -> TrainedModel:
    """Read an experiment with OpenAI's vocabulary, for several ``Speech2Text(trained=...)``."""
    trained = read_model(experiment.config, experiment.model, "cpu")
    return replace(trained, tokenizer=make_tokenizer(len(trained.asr_model.token_list)))
