"""Our search for a model and its options, or none where ESPnet's own decodes."""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.inference.option_checks import check_greedy, why_not_beam
from espnet_medusa.model.espnet_transformer import searchable, unknown_part
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.build import build_beam, build_greedy
from espnet_medusa.search.drafters import DraftSources
from espnet_medusa.search.options import GREEDY
from espnet_medusa.search.search import Search

logger = logging.getLogger(__name__)


def choose_search(
    options: DecodeOptions,
    espnet_options: Mapping[str, Any],
    model: torch.nn.Module,
    espnet: torch.nn.Module | None,
    nbest: int,
    sources: DraftSources,
    device: torch.device,
) -> Search | None:
    """Greedy or beam search over the model's decoder.

    Args:
        options: Ours.
        espnet_options: ESPnet's, as they were given.
        model: ESPnet's, trained.
        espnet: The search that ESPnet made of its options.
        nbest: Hypotheses asked for.
        sources: What can draft beside heads.
        device: Where decoding happens.

    Returns:
        None where the decoder or the options are for ESPnet's own search.

    Raises:
        InputError: The model cannot do what the options ask for.
    """
    reason = next(
        (f"{name}: true" for name in ("multi_asr", "enh_s2t_task") if espnet_options.get(name)),
        unknown_part(model.decoder),
    )
    greedy, sizes = options.search == GREEDY, (len(model.token_list), model.eos)
    if greedy:
        check_greedy(reason, espnet_options)
    else:
        reason = reason or why_not_beam(espnet)
    if reason is not None:
        logger.warning(
            "ESPnet's own search decodes, one utterance at a time and without drafts; the "
            f"reason: {reason}"
        )
        return None
    decoder = build_runtime(searchable(model.decoder), options.decoder_precision)
    if greedy:
        search = build_greedy(options, decoder, *sizes, device, sources)
    else:
        search = build_beam(
            options,
            decoder,
            {name: part for name, part in espnet.full_scorers.items() if name != "decoder"},
            model.ctc if "ctc" in espnet.part_scorers else None,
            espnet.weights,
            espnet.beam_size,
            *sizes,
            espnet.normalize_length,
            device,
            sources,
            nbest,
        )
    logger.info(f"{type(search).__name__}, drafts: {search.drafter.shape}")
    return search
