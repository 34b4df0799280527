"""Make subjects: random decoders, trained decoders and real Whispers."""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
from inputs import Utterance
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperForConditionalGeneration

from contestants.subjects import (
    CTC_FILE,
    DRAFT_FILE,
    ENCODER_FILE,
    OURS_FILE,
    MemorySubject,
    Sizes,
    SpeechSubject,
)
from contestants.ways import DRAFTERS, FLOAT32
from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.convert.checkpoint import Checkpoint
from espnet_medusa.inference.convert.experiment import CONFIG, read_experiment
from espnet_medusa.inference.convert.write_ctranslate2 import write_ctranslate2
from espnet_medusa.inference.convert.write_whisper import write_hugging_face
from espnet_medusa.inference.experiment import NoInitialization, find_weights
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.multi_token_decoder import TOKEN_COUNTS
from espnet_medusa.networks.whisper.tokens import DETECT
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.recipes.tuning.available import available
from espnet_medusa.recipes.tuning.tuned_model import DraftModelFiles, TunedASR

WHISPER_SHAPES = {  # layers, hidden size, attention heads
    "tiny": (4, 384, 6),
    "base": (6, 512, 8),
    "small": (12, 768, 12),
    "large-v2": (32, 1280, 20),
    "large-v3": (32, 1280, 20),
    "large-v3-turbo": (4, 1280, 20),
}
V3 = ("large-v3", "large-v3-turbo")  # they have one more language
VOCAB_SIZE, MEMORY_FRAMES, MAX_POSITIONS = 51865, 1500, 448
LOGIT_SPREAD = 4.0  # standard deviation of random logits; so large that no two are equal
END_LOGIT = -60.0  # far below them: the end symbol never wins


def trained_subject(
    folder: Path,
    name: str,
    model: Speech2Text,
    draft: Speech2Text | None,
    utterances: list[Utterance],
) -> MemorySubject:
    """Write the decoder, encoder and CTC branch of a trained model; inputs are audio.

    Args:
        draft: A model with a smaller decoder on the same encoder; None: no draft model.

    Raises:
        InputError: The model has more parts than an encoder and a decoder, or the draft model has
            another encoder or vocabulary.
    """
    asr = model.asr_model
    for part in ("frontend", "normalize", "preencoder", "postencoder"):
        if getattr(asr, part, None) is not None:
            raise InputError(f"the model has a {part}; allowed: hf_whisper on waveforms alone")
    conf = model.asr_train_args.decoder_conf
    has_heads = asr.decoder.heads is not None
    heads = {key: conf[key] for key in ("heads", "heads_conf") if has_heads and key in conf}
    subject = _write_decoder(folder, name, asr.decoder, asr.eos, heads)
    save_file(asr.encoder.state_dict(), folder / ENCODER_FILE)
    longest_first = sorted(utterances, key=lambda utterance: -utterance.seconds)
    subject = replace(
        subject,
        encoder_conf=asr.encoder.conf | {"subsampling": asr.encoder.subsampling},
        inputs=[utterance.id for utterance in longest_first],
    )
    if getattr(asr, "ctc", None) is not None:
        save_file(asr.ctc.ctc_lo.state_dict(), folder / CTC_FILE)
        subject = replace(subject, ctc_blank=asr.blank_id)
    if draft is not None:
        _check_draft(model, draft)
        decoder = draft.asr_model.decoder
        hugging_face_model(decoder, asr.eos).save_pretrained(subject.draft)
        subject = replace(subject, draft_conf=_write_ours(folder / DRAFT_FILE, decoder, {}))
    subject.save({utterance.id: utterance.speech for utterance in utterances})
    return subject


def _check_draft(model: Speech2Text, draft: Speech2Text) -> None:
    """Refuse a draft model with another encoder or vocabulary."""
    if not model.encoder.is_like(draft.encoder):
        raise InputError(
            "the draft model's encoder is not the base's; train it with conf/train_draft.yaml"
        )
    if draft.asr_model.token_list != model.asr_model.token_list:
        raise InputError("the draft model's tokens are not the base's; train it with the same")


@torch.no_grad()
def random_subject(folder: Path, shape: str, tokens: int, num_inputs: int) -> MemorySubject:
    """Write random weights of a shape of ``WHISPER_SHAPES``, and random memories.

    The last hidden dimension is 1 after the last normalization and contributes only to the end
    symbol, so every contestant writes the same number of tokens.
    """
    decoder = random_decoder(shape)
    subject = _write_decoder(folder, f"random {shape}", decoder, end_symbol(decoder), {})
    names = [f"random{index}" for index in range(num_inputs)]
    subject = replace(subject, fixed_tokens=tokens, inputs=names)
    size = subject.sizes.hidden_size
    subject.save({name: torch.randn(MEMORY_FRAMES, size).numpy() for name in names})
    return subject


@torch.no_grad()
def random_decoder(shape: str) -> WhisperMedusaDecoder:
    """Build a decoder with the same random weights each time; the last token never wins."""
    torch.manual_seed(0)
    layers, hidden_size, attention_heads = WHISPER_SHAPES[shape]
    decoder = WhisperMedusaDecoder(
        VOCAB_SIZE + (shape in V3), hidden_size, num_blocks=layers, attention_heads=attention_heads,
        linear_units=4 * hidden_size, max_target_positions=MAX_POSITIONS, heads="none",
    ).eval()  # fmt: skip
    # Scale the weights: logits without ties, varied texts, no end symbol.
    whisper, eos = decoder.whisper, end_symbol(decoder)
    for embedding in (whisper.embed_tokens, whisper.embed_positions):
        torch.nn.init.normal_(embedding.weight, std=LOGIT_SPREAD / math.sqrt(hidden_size))
    # With random signs a token does not predict itself through the tied embedding.
    whisper.layer_norm.weight.copy_(torch.randint(0, 2, (hidden_size,)) * 2.0 - 1.0)
    whisper.layer_norm.weight[-1], whisper.layer_norm.bias[-1] = 0.0, 1.0
    whisper.embed_tokens.weight[:, -1] = 0.0
    whisper.embed_tokens.weight[eos] = 0.0
    whisper.embed_tokens.weight[eos, -1] = END_LOGIT
    return decoder


def end_symbol(decoder: WhisperMedusaDecoder) -> int:
    """Return the last token, which is the end symbol of random decoders."""
    return decoder.whisper.config.vocab_size - 1


def speech_subject(
    folder: Path,
    name: str,
    exp_dir: Path,
    draft_model: str | None,
    utterances: Sequence[Utterance],
    long: bool = False,
) -> SpeechSubject:
    """Write a real Whisper in all formats, and speech.

    Args:
        exp_dir: A Whisper as ``espnet-medusa-convert`` makes it, or a trained experiment.
        draft_model: Value of the decode option.
        utterances: Speech; utterances longer than the model's window are left out.
        long: Whether utterances of any length are kept.

    Raises:
        InputError: The experiment is no Whisper, or no utterance is short enough.
    """
    config, weights = exp_dir / CONFIG, find_weights(exp_dir, "whisper")
    speech2text = Speech2Text(config, weights, draft_depth=0, ctc_weight=0.0, lm_weight=0.0)
    if speech2text.whisper is None:
        raise InputError(f"{exp_dir}: no Whisper; convert one with espnet-medusa-convert")
    language = speech2text.whisper.language or "en"  # English models have no language prompt
    if language == DETECT:
        raise InputError(f"{exp_dir}: language: {DETECT}; allowed: a code, for all programs")
    models = [] if draft_model is None else [DraftModelFiles(draft_model)]
    available_drafters = available(TunedASR(speech2text), DRAFTERS, models)
    drafters = [*dict.fromkeys(one.kind for one in available_drafters.drafters.values())]
    windows = (speech2text.model.audio.window_s, available_drafters.window_s)
    window = min(seconds for seconds in windows if seconds is not None)
    speeches = {one.id: one.speech for one in utterances if long or one.seconds <= window}
    if not speeches:
        raise InputError(f"no utterance of at most {window:g} s; give others with --data_dir")
    checkpoint = read_experiment(exp_dir, weights)
    subject = SpeechSubject(
        folder, name, [*speeches], str(config), str(weights), language, draft_model,
        drafters, available_drafters.left_out, long,
    )  # fmt: skip
    write_formats(checkpoint, subject)
    subject.save(speeches)
    return subject


def write_formats(checkpoint: Checkpoint, subject: SpeechSubject) -> None:
    """Write a real Whisper in the formats of other programs."""
    for target in (subject.hugging_face, subject.ctranslate2):
        target.mkdir(parents=True)
    write_hugging_face(checkpoint, subject.hugging_face)
    if find_spec("ctranslate2"):  # without it faster-whisper is left out
        write_ctranslate2(checkpoint, subject.ctranslate2, FLOAT32)


def convert_to_ctranslate2(subject: MemorySubject, weights: str) -> None:
    """Write the weights that CTranslate2 reads, unless they exist; may raise ImportError."""
    from contestants.faster_whisper import convert

    if not subject.ctranslate2(weights).exists():
        model = WhisperForConditionalGeneration.from_pretrained(subject.hugging_face)
        convert(model, subject.eos, weights, subject.ctranslate2(weights))


def _write_decoder(
    folder: Path, name: str, decoder: WhisperMedusaDecoder, eos: int, heads: dict
) -> MemorySubject:
    folder.mkdir(parents=True, exist_ok=True)
    conf, config = _write_ours(folder / OURS_FILE, decoder, heads), decoder.whisper.config
    sizes = Sizes(
        config.decoder_layers, config.d_model, config.decoder_attention_heads, config.vocab_size,
        config.max_target_positions,
    )  # fmt: skip
    subject = MemorySubject(folder, name, [], sizes, eos, None, conf)
    hugging_face_model(decoder, eos).save_pretrained(subject.hugging_face)
    return subject


def _write_ours(path: Path, decoder: WhisperMedusaDecoder, heads: dict) -> dict:
    """Write a decoder's weights, with heads if any; return the options that rebuild it."""
    left_out = ("original_last_layer.", *([] if heads else ["heads.", TOKEN_COUNTS]))
    weights = {
        name: tensor.contiguous()
        for name, tensor in decoder.state_dict().items()
        if not name.startswith(left_out)
    }
    save_file(weights, path)
    return decoder.conf | heads


def hugging_face_model(decoder: WhisperMedusaDecoder, eos: int) -> WhisperForConditionalGeneration:
    """Build transformers' model of the base decoder, with an encoder layer that is never run."""
    config, heads = decoder.whisper.config, decoder.whisper.config.decoder_attention_heads
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    same = ("vocab_size", "d_model", "decoder_layers", "decoder_ffn_dim", "max_target_positions")
    options = dict.fromkeys(names, eos) | {name: getattr(config, name) for name in same}
    options |= {"suppress_tokens": None, "begin_suppress_tokens": None}
    options |= {"encoder_layers": 1, "encoder_ffn_dim": 1}
    options |= {"decoder_attention_heads": heads, "encoder_attention_heads": heads}
    with NoInitialization():
        model = WhisperForConditionalGeneration(WhisperConfig(**options))
    for weight in model.model.encoder.parameters():
        torch.nn.init.zeros_(weight)
    model.model.decoder.load_state_dict(decoder.whisper.state_dict())
    return model
