"""Build, from a trained decoder, the runtime that searches call."""

from espnet_medusa.decoding.runtime.cross_attention import ESPnetTransformerRuntime, WhisperRuntime
from espnet_medusa.decoding.runtime.cuda_graph import CudaGraphWhisperRuntime
from espnet_medusa.decoding.runtime.llama import LlamaRuntime
from espnet_medusa.decoding.runtime.precision import decoder_precision
from espnet_medusa.decoding.runtime.tree_runtime import TreeRuntime
from espnet_medusa.networks.espnet_transformer import TransformerMedusaDecoder
from espnet_medusa.networks.llama_decoder import SpeechLlamaDecoder
from espnet_medusa.networks.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder

RUNTIMES: dict[type, type[TreeRuntime]] = {
    WhisperMedusaDecoder: WhisperRuntime,
    SpeechLlamaDecoder: LlamaRuntime,
    TransformerMedusaDecoder: ESPnetTransformerRuntime,
}


def build_runtime(
    decoder: MultiTokenDecoder, precision: str | None = None, with_graphs: bool = True
) -> TreeRuntime:
    """Return a decoder over token trees: copies of weights, and shared embeddings.

    Raise InputError if the device does not support the precision.

    Args:
        precision: The decode option ``decoder_precision``; None: the dtype of the weights.
        with_graphs: Whether to use CUDA graphs on a GPU. False if too few searches follow to pay
            for their capture.
    """
    weight = decoder.projection
    kind = next(RUNTIMES[parent] for parent in type(decoder).__mro__ if parent in RUNTIMES)
    if kind is WhisperRuntime and with_graphs and weight.device.type == "cuda":
        kind = CudaGraphWhisperRuntime
    return kind(decoder, decoder_precision(precision, weight.device, weight.dtype))
