"""Whether a batch, of audio or of what a frozen model gave for it, is one to train on."""

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.model.multi_token_decoder import MultiTokenDecoder


def check_cached_memory(memory: torch.Tensor | None, encoder: torch.nn.Module) -> None:
    """Check outputs (B, S, D) of a frozen encoder, kept instead of audio.

    Raises:
        InputError: They are missing, the encoder trains, or gives frames of another size.
    """
    if memory is None:
        raise InputError("speech: missing; train on audio, or on what stages cache_memory kept")
    if trains(encoder):
        raise InputError(
            "memory: kept outputs are of a frozen encoder: set freeze_param: [encoder], or "
            "train on audio"
        )
    if memory.size(2) != encoder.output_size():
        raise InputError(
            f"memory: frames of {memory.size(2)} numbers; this encoder gives "
            f"{encoder.output_size()}: keep its own outputs"
        )


def check_cached_states(
    states: torch.Tensor, text: torch.Tensor, encoder: torch.nn.Module, decoder: MultiTokenDecoder
) -> None:
    """Check last hidden states (B, L + 1, D) of a frozen decoder, kept for tokens (B, L).

    Raises:
        InputError: Something that they are of trains, or they are of other tokens.
    """
    network = decoder.get_submodule(decoder.network)
    original = decoder.original_last_layer is not None
    if trains(encoder) or trains(network) or original:
        raise InputError(
            "speech: kept states are of a frozen Whisper: set model_conf.freeze_whisper: all "
            "and decoder_conf.keep_original_last_layer: false, or train on audio"
        )
    if states.size(1) != text.size(1) + 1:
        raise InputError(
            f"speech: {states.size(1)} kept states, {text.size(1)} tokens; train on the "
            "text_int that was written with the states"
        )


def check_lengths(
    decoder: MultiTokenDecoder,
    memory_lengths: torch.Tensor,
    text_lengths: torch.Tensor,
    utterances: list[str] | None,
) -> None:
    """Check that texts have room.

    Args:
        decoder: That has the positions.
        memory_lengths: (B,) frames.
        text_lengths: (B,) tokens.
        utterances: Their names, for messages.

    Raises:
        InputError: A text is longer than the decoder has positions for.
    """
    pairs = zip(memory_lengths.tolist(), text_lengths.tolist(), strict=True)
    for row, (frames, length) in enumerate(pairs):
        longest = decoder.max_depth(frames) - 1  # the start takes one
        if length > longest:
            name = utterances[row] if utterances else f"row {row} of the batch"
            raise InputError(
                f"{name}: a text of {length} tokens; the decoder has positions for {longest}: "
                "leave the utterance out or cut it (stage 10 of asr.sh leaves such texts out)"
            )


def trains(module: torch.nn.Module) -> bool:
    """Whether anything of it does."""
    return any(parameter.requires_grad for parameter in module.parameters())
