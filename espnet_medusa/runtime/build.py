"""A trained decoder to the runtime that searches call."""

from espnet_medusa.model.espnet_transformer import ESPnetTransformerDecoder
from espnet_medusa.model.llama_decoder import SpeechLlamaDecoder
from espnet_medusa.model.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.runtime.cuda_graph import CudaGraphWhisperRuntime
from espnet_medusa.runtime.espnet_transformer import ESPnetTransformerRuntime
from espnet_medusa.runtime.llama import LlamaRuntime
from espnet_medusa.runtime.precision import resolve_precision
from espnet_medusa.runtime.tree_runtime import TreeRuntime
from espnet_medusa.runtime.whisper import WhisperRuntime

RUNTIMES: dict[type, type[TreeRuntime]] = {
    WhisperMedusaDecoder: WhisperRuntime,
    SpeechLlamaDecoder: LlamaRuntime,
    ESPnetTransformerDecoder: ESPnetTransformerRuntime,
}
WITH_CUDA_GRAPHS = {WhisperRuntime: CudaGraphWhisperRuntime}  # what has CUDA graphs


def build_runtime(
    decoder: MultiTokenDecoder | ESPnetTransformerDecoder,
    precision: str | None = None,
    lasting: bool = True,
) -> TreeRuntime:
    """The decoder over token trees, with the module's weights at this moment.

    Weights that change later do not reach it.

    Args:
        decoder: As ``searchable`` gives it.
        precision: As the decode option ``decoder_precision``; None: the weights' own.
        lasting: Whether many searches will use it, so that capturing CUDA graphs pays.

    Raises:
        InputError: Nothing this device computes with.
    """
    weight = decoder.projection
    kind = next(RUNTIMES[known] for known in type(decoder).__mro__ if known in RUNTIMES)
    if lasting and weight.device.type == "cuda":
        kind = WITH_CUDA_GRAPHS.get(kind, kind)
    return kind(decoder, resolve_precision(precision, weight.device, weight.dtype))
