"""Subjects from a trained experiment or from random weights."""

import math
from dataclasses import replace
from pathlib import Path

import torch
from inputs import Utterance
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperForConditionalGeneration

from espnet_medusa.errors import InputError
from espnet_medusa.inference.audio_batch import encode_alike
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.model.multi_token_decoder import TOKEN_COUNTS
from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from peers.subject import DRAFT, ENCODER, HUGGING_FACE, OURS, OURS_CTC, OURS_DRAFT, Sizes, Subject

WHISPER_SHAPES = {  # layers, hidden size, attention heads
    "tiny": (4, 384, 6),
    "base": (6, 512, 8),
    "small": (12, 768, 12),
    "large-v2": (32, 1280, 20),
}
VOCAB_SIZE, MEMORY_FRAMES, MAX_POSITIONS = 51865, 1500, 448
LOGIT_SPREAD = 4.0  # standard deviation of random logits: peaked enough that none tie
END_LOGIT = -60.0  # far below them: the end symbol never wins
RANDOM_HEADS = {"heads": "recurrent", "heads_conf": {"num_heads": 8}}


def trained_subject(
    folder: Path,
    name: str,
    model: Speech2Text,
    draft: Speech2Text | None,
    utterances: list[Utterance],
) -> Subject:
    """A trained model's decoder, encoder and CTC branch, audio as inputs.

    Args:
        folder: To write.
        name: For tables.
        model: With heads.
        draft: One with a smaller decoder on the same encoder; None: no draft model.
        utterances: To decode.

    Raises:
        InputError: The model has more than an encoder and a decoder, or the draft's encoder or
            vocabulary is another one.
    """
    asr = model.asr_model
    for part in ("frontend", "normalize", "preencoder", "postencoder"):
        if getattr(asr, part, None) is not None:
            raise InputError(f"the model has a {part}; allowed: hf_whisper on waveforms alone")
    conf = model.asr_train_args.decoder_conf
    has_heads = asr.decoder.heads is not None
    heads = {key: conf[key] for key in ("heads", "heads_conf") if has_heads and key in conf}
    subject = _write_decoder(folder, name, asr.decoder, asr.eos, heads)
    save_file(asr.encoder.state_dict(), folder / ENCODER)
    longest_first = sorted(utterances, key=lambda utterance: -utterance.seconds)
    subject = replace(
        subject,
        encoder_conf=asr.encoder.conf | {"subsampling": asr.encoder.subsampling},
        inputs=[utterance.id for utterance in longest_first],
    )
    for utterance in utterances:
        subject.write_input(utterance.id, utterance.speech)
    if getattr(asr, "ctc", None) is not None:
        save_file(asr.ctc.ctc_lo.state_dict(), folder / OURS_CTC)
        subject = replace(subject, ctc_blank=asr.blank_id)
    if draft is not None:
        _check_draft(model, draft)
        decoder = draft.asr_model.decoder
        _write_hugging_face(folder / DRAFT, decoder, asr.eos)
        subject = replace(subject, draft_conf=_write_ours(folder / OURS_DRAFT, decoder, {}))
    subject.save()
    return subject


def _check_draft(model: Speech2Text, draft: Speech2Text) -> None:
    """Refuse one that could not read the model's memory, or writes other tokens."""
    if not encode_alike(model.encoder, draft.encoder):
        raise InputError(
            "the draft model's encoder is not the base's; train it with conf/train_draft.yaml"
        )
    if draft.asr_model.token_list != model.asr_model.token_list:
        raise InputError("the draft model's tokens are not the base's; train it with the same")


@torch.no_grad()
def random_subject(folder: Path, shape: str, tokens: int, num_inputs: int) -> Subject:
    """Random weights of a Whisper's shape, random memories as inputs.

    The last hidden dimension is 1 after the last normalisation and counts for the end symbol
    alone, so every contestant writes the same number of tokens without being told to.

    Args:
        folder: To write.
        shape: A name in ``WHISPER_SHAPES``.
        tokens: That every contestant writes.
        num_inputs: Memories.
    """
    decoder, eos = random_decoder(shape, **RANDOM_HEADS), VOCAB_SIZE - 1
    decoder.count_tokens(torch.arange(VOCAB_SIZE))  # any tokens make a draft vocabulary
    subject = _write_decoder(folder, f"random {shape}", decoder, eos, RANDOM_HEADS)
    subject = replace(
        subject, fixed_tokens=tokens, inputs=[f"random{index}" for index in range(num_inputs)]
    )
    for name in subject.inputs:
        memory = torch.randn(MEMORY_FRAMES, subject.sizes.hidden_size)
        subject.write_input(name, memory.numpy())
    subject.save()
    return subject


@torch.no_grad()
def random_decoder(shape: str, **heads) -> WhisperMedusaDecoder:
    """Random weights, always the same; the last token never wins.

    Args:
        shape: A name in ``WHISPER_SHAPES``.
        heads: The decoder's options of heads.
    """
    torch.manual_seed(0)
    layers, hidden_size, attention_heads = WHISPER_SHAPES[shape]
    decoder = WhisperMedusaDecoder(
        vocab_size=VOCAB_SIZE,
        encoder_output_size=hidden_size,
        num_blocks=layers,
        attention_heads=attention_heads,
        linear_units=4 * hidden_size,
        max_target_positions=MAX_POSITIONS,
        **heads,
    ).eval()
    make_lively(decoder, VOCAB_SIZE - 1)
    return decoder


@torch.no_grad()
def make_lively(decoder: WhisperMedusaDecoder, eos: int) -> None:
    """Give random weights logits without ties, text that varies, and an end that never comes."""
    whisper, hidden_size = decoder.whisper, decoder.whisper.config.d_model
    for embedding in (whisper.embed_tokens, whisper.embed_positions):
        torch.nn.init.normal_(embedding.weight, std=LOGIT_SPREAD / math.sqrt(hidden_size))
    # With random signs a token does not predict itself through the tied embedding.
    whisper.layer_norm.weight.copy_(torch.randint(0, 2, (hidden_size,)) * 2.0 - 1.0)
    whisper.layer_norm.weight[-1], whisper.layer_norm.bias[-1] = 0.0, 1.0
    whisper.embed_tokens.weight[:, -1] = 0.0
    whisper.embed_tokens.weight[eos] = 0.0
    whisper.embed_tokens.weight[eos, -1] = END_LOGIT


def convert_to_ctranslate2(subject: Subject, weights: str) -> None:
    """Write the weights that CTranslate2 reads.

    Raises:
        ImportError: CTranslate2 is not installed.
    """
    from peers.faster_whisper_engine import convert

    if not subject.ctranslate2(weights).exists():
        folder = subject.folder / HUGGING_FACE
        convert(folder, subject.eos, weights, subject.ctranslate2(weights))


def _write_decoder(
    folder: Path, name: str, decoder: WhisperMedusaDecoder, eos: int, heads: dict
) -> Subject:
    folder.mkdir(parents=True, exist_ok=True)
    conf = _write_ours(folder / OURS, decoder, heads)
    _write_hugging_face(folder / HUGGING_FACE, decoder, eos)
    config = decoder.whisper.config
    sizes = Sizes(
        config.decoder_layers,
        config.d_model,
        config.decoder_attention_heads,
        config.vocab_size,
        config.max_target_positions,
    )
    return Subject(folder, name, sizes, eos, None, conf, None, [])


def _write_ours(path: Path, decoder: WhisperMedusaDecoder, heads: dict) -> dict:
    """A decoder's weights, those of heads where there are any; the options that rebuild it."""
    left_out = ("original_last_layer.", *([] if heads else ["heads.", TOKEN_COUNTS]))
    weights = decoder.state_dict()
    kept = {key: one.contiguous() for key, one in weights.items() if not key.startswith(left_out)}
    save_file(kept, path)
    return decoder.conf | heads


def _write_hugging_face(folder: Path, decoder: WhisperMedusaDecoder, eos: int) -> None:
    """The base decoder in Hugging Face format, behind an encoder layer that nobody runs."""
    config = decoder.whisper.config
    symbols = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            decoder_layers=config.decoder_layers,
            decoder_attention_heads=config.decoder_attention_heads,
            decoder_ffn_dim=config.decoder_ffn_dim,
            max_target_positions=config.max_target_positions,
            encoder_layers=1,
            encoder_attention_heads=config.decoder_attention_heads,
            encoder_ffn_dim=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            **dict.fromkeys(symbols, eos),
        )
    )
    model.model.decoder.load_state_dict(decoder.whisper.state_dict())
    model.save_pretrained(folder)
