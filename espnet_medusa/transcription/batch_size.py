"""The number of files that are decoded together, if ``batch_size`` is not given."""

import torch

from espnet_medusa.decoding.runtime.device_loop import keys_values_size
from espnet_medusa.inference.decoding_model import QUEUED_BATCHES, DecodingModel
from espnet_medusa.inference.longform.driver import RECORDING_FRAMES
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder

ON_CPU = 8
LARGEST_ON_GPU = 32  # base on an H100: 64 together took longer per utterance than 16 (2 of 3 runs)
# The rest is for graphs, storages of other batch sizes, and a beam's cache that grows.
USED_SHARE = 0.5
FLOAT_BYTES = 4
ENCODER_STATES = 12  # hidden states of one encoder layer, feed-forward network included
POSITIONS = 448  # of Whisper's decoders
NODES = 16  # that a decoder call evaluates: hypotheses or drafted tokens
LOGIT_COPIES = 4  # of a search: logits, their log-probabilities, and temporary results


def default_batch_size(model: DecodingModel) -> int:
    """Return the batch size for a model on its device, after its weights were loaded.

    On a GPU, it depends on the free memory. Models other than Whisper have the CPU's batch size:
    their audio has no longest length.
    """
    decoder, encoder = model.asr_model.decoder, model.encoder.whisper
    is_whisper = encoder is not None and isinstance(decoder, WhisperMedusaDecoder)
    if model.device.type != "cuda" or model.search is None or not is_whisper:
        return ON_CPU
    sizes, size = decoder.whisper.config, encoder.whisper.config
    frames, bins = size.max_source_positions, size.num_mel_bins
    itemsize = model.search.decoder.dtype.itemsize
    each = utterance_bytes(
        sizes.decoder_layers, sizes.d_model, sizes.vocab_size, frames, bins, itemsize
    )
    torch.cuda.empty_cache()  # float32 weights, of which the search has a copy in 16 bits
    free_bytes, _ = torch.cuda.mem_get_info(model.device)
    return fitting_batch_size(free_bytes, each)


def utterance_bytes(
    layers: int, width: int, vocabulary: int, frames: int, mel_bins: int, itemsize: int
) -> int:
    """Return the GPU memory in bytes that one utterance of a batch needs.

    Without features, these are 70 MB for base and 530 MB for large-v2 in float16. On an H100, 64
    utterances took 61 to 69 and 390 MB each, before others waited and began in a storage of their
    own.

    Args:
        layers: Number of decoder layers.
        width: Size of hidden states, like the encoder's.
        frames: Length of the encoder output.
        itemsize: Bytes of a number in the decoder's precision.
    """
    encoder = (QUEUED_BATCHES + ENCODER_STATES) * frames * width
    keys_values = keys_values_size(layers, width, frames, POSITIONS)
    logits = LOGIT_COPIES * NODES * vocabulary
    features = RECORDING_FRAMES * mel_bins
    return itemsize * (encoder + keys_values) + FLOAT_BYTES * (logits + features)


def fitting_batch_size(free_bytes: int, bytes_each: int) -> int:
    """Return the largest power of two that fits into a share of the free memory, within limits."""
    fitting = int(USED_SHARE * free_bytes) // bytes_each
    return min(1 << max(fitting.bit_length() - 1, 0), LARGEST_ON_GPU)
