"""Checks of training batches: audio, or cached output of a frozen model."""

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.networks.multi_token_decoder import MultiTokenDecoder


def check_cached_memory(memory: torch.Tensor | None, encoder: torch.nn.Module) -> None:
    """Raise InputError if encoder output (B, S, D) cannot replace audio in training."""
    if memory is None:
        raise InputError("speech: missing; train on audio or on cached output (stage cache_memory)")
    if trains(encoder):
        raise InputError(
            "memory: cached output requires a frozen encoder: set freeze_param: [encoder], or "
            "train on audio"
        )
    if memory.size(2) != encoder.output_size():
        raise InputError(
            f"memory: frames of size {memory.size(2)}; this encoder's output has size "
            f"{encoder.output_size()}: cache its own output"
        )


def check_cached_states(
    states: torch.Tensor, text: torch.Tensor, encoder: torch.nn.Module, decoder: MultiTokenDecoder
) -> None:
    """Raise InputError if states (B, L + 1, D) cannot replace audio for tokens (B, L)."""
    network = decoder.get_submodule(decoder.network)
    if trains(encoder) or trains(network) or decoder.original_last_layer is not None:
        raise InputError(
            "speech: cached states require a frozen Whisper: set model_conf.freeze_whisper: all "
            "and decoder_conf.keep_original_last_layer: false, or train on audio"
        )
    if states.size(1) != text.size(1) + 1:
        raise InputError(
            f"speech: {states.size(1)} cached states, {text.size(1)} tokens; train on the "
            "text_int that was written with the states"
        )


def check_lengths(
    decoder: MultiTokenDecoder,
    memory_lengths: torch.Tensor,
    text_lengths: torch.Tensor,
    utterances: list[str] | None,
) -> None:
    """Raise InputError if the decoder lacks positions for a text; lengths are (B,)."""
    pairs = zip(memory_lengths.tolist(), text_lengths.tolist(), strict=True)
    for row, (frames, length) in enumerate(pairs):
        longest = decoder.max_depth(frames) - 1  # the start token takes one
        if length > longest:
            name = utterances[row] if utterances else f"row {row} of the batch"
            raise InputError(
                f"{name}: a text of {length} tokens; the decoder has positions for {longest}: "
                "remove the utterance or cut it (stage 10 does so for whisper_medusa)"
            )


def trains(module: torch.nn.Module) -> bool:
    """Return whether a parameter of the module requires a gradient."""
    return any(parameter.requires_grad for parameter in module.parameters())
