"""Write the heads of a trained experiment into a folder that can be published."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.build import draft_shape
from espnet_medusa.decoding.search.drafters import DraftSources, build_proposer
from espnet_medusa.decoding.search.search_options import (
    SearchOptions,
    check_options,
    with_draft_defaults,
)
from espnet_medusa.decoding.search.statistics import read_report
from espnet_medusa.inference.convert.attach_heads import check_keeps_text
from espnet_medusa.inference.convert.checkpoint import Checkpoint
from espnet_medusa.inference.convert.heads_card import (
    check_card,
    read_front_matter,
    sizes_of,
    write_card,
)
from espnet_medusa.inference.convert.names import COUNTS, DECODER
from espnet_medusa.inference.convert.packed_heads import head_tensors, open_heads, save_heads
from espnet_medusa.networks.heads import NO_HEADS
from espnet_medusa.networks.whisper.fingerprint import digests, fingerprint
from espnet_medusa.networks.whisper.sizes import DECODER_SIZES, options_of_config
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder

MAX_BYTES = 10_000_000
LEAST_AGREEMENT = 0.95
POSITIONS, FRAMES = 100, 200  # tokens (at most) and encoder frames for the comparison of drafts
BEAM_SIZE = 5  # for checking the draft options of beam search


def pack_heads(
    trained: Checkpoint, base: Checkpoint, card: Path, statistics: Path, folder: Path
) -> tuple[int, float]:
    """Write a folder of heads; return its bytes, and the share of drafts unchanged by float16.

    Raise InputError if there are no heads, they change Whisper's text, Whisper was not frozen,
    float16 changes too many drafts, the folder is too large, or the card lacks a field.

    Args:
        base: The Whisper that they were trained on, as published.
        card: The author's fields: ``base_model``, ``license``, ``training_data``, ``commands``,
            ``acceptance.data``, and optionally ``draft_conf`` and ``language``.
        statistics: ``statistics.json`` of greedy search with these heads.
    """
    architecture = trained.architecture
    content, body = read_front_matter(card)
    if architecture.heads == NO_HEADS:
        raise InputError(f"{trained.name}: heads: {NO_HEADS}; give an experiment that has heads")
    check_frozen(trained, base)
    check_keeps_text(architecture, head_tensors(trained.weights), trained.name)
    content |= {
        "whisper": sizes_of(architecture.whisper),
        "fingerprint": fingerprint(base.weights),
        "heads": architecture.heads,
        "heads_conf": asdict(architecture.head_options),
        "acceptance": _acceptance(content.get("acceptance"), statistics),
    }
    check_card(content, card)
    write_card(folder, content, body)
    save_heads(folder, trained.weights)
    packed = open_heads(folder)
    stored = packed.weights(packed.architecture(architecture.whisper))
    decoders = [_decoder(trained, weights) for weights in (trained.weights, stored)]
    agreement = share_of_same_drafts(*decoders)
    if agreement < LEAST_AGREEMENT:
        raise InputError(
            f"{trained.name}: in float16 {100 * agreement:.1f} % of the heads' drafts are the same "
            f"as in float32; allowed: {100 * LEAST_AGREEMENT:.0f} % or more"
        )
    check_draft_conf(decoders[1], packed.card.draft_conf, trained.text.end)
    num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    if num_bytes > MAX_BYTES:
        raise InputError(
            f"{trained.name}: its heads take {num_bytes / 1e6:.1f} MB; allowed: at most "
            f"{MAX_BYTES / 1e6:.0f} MB; train smaller ones"
        )
    return num_bytes, agreement


def check_frozen(trained: Checkpoint, base: Checkpoint) -> None:
    """Raise InputError if an experiment's Whisper is not the published one."""
    ours, theirs = digests(trained.weights), digests(base.weights)
    different = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    if different:
        raise InputError(
            f"{trained.name}: {len(different)} of {len(theirs)} tensors are not those of "
            f"{base.name}, such as {different[-1]}; allowed: heads on a frozen Whisper "
            "(model_conf.freeze_whisper: all)"
        )


def check_draft_conf(decoder: WhisperMedusaDecoder, draft_conf: dict[str, dict], end: int) -> None:
    """Raise InputError if the heads cannot draft with a card's recommended options."""
    runtime = build_runtime(decoder, None)
    sources = DraftSources(frequent_tokens=decoder.draft_vocabulary)
    for search in draft_conf:
        options = with_draft_defaults(SearchOptions(search=search), draft_conf)
        check_options(options, BEAM_SIZE)
        vocab_size = decoder.projection.size(0)
        proposer = build_proposer(options, runtime, vocab_size, end, sources)
        draft_shape(options, runtime, proposer, BEAM_SIZE)


@torch.no_grad()
def share_of_same_drafts(left: WhisperMedusaDecoder, right: WhisperMedusaDecoder) -> float:
    """Return the share of equal drafts of two decoders' heads, for random inputs."""
    generator = torch.Generator().manual_seed(0)
    vocab_size, size = left.projection.shape
    encoder_out = torch.randn(1, FRAMES, size, generator=generator)
    positions = min(POSITIONS, left.max_depth(FRAMES))
    tokens = torch.randint(vocab_size, (1, positions), generator=generator)
    drafts = []
    for decoder in (left, right):
        states = decoder.hidden_states(encoder_out, torch.tensor([FRAMES]), tokens)
        logits = decoder.unroll_heads(states, tokens)
        drafts.append(torch.cat([of_head.argmax(dim=-1).flatten() for of_head in logits]))
    return float((drafts[0] == drafts[1]).double().mean())


def _decoder(trained: Checkpoint, heads: Mapping[str, torch.Tensor]) -> WhisperMedusaDecoder:
    """Return the experiment's decoder in float32 with these heads and counts."""
    architecture = trained.architecture
    whisper = architecture.whisper
    conf = {"heads": architecture.heads, "heads_conf": asdict(architecture.head_options)}
    conf |= options_of_config(whisper, DECODER_SIZES)
    decoder = WhisperMedusaDecoder(whisper.vocab_size, whisper.d_model, **conf)
    frozen = {name: value for name, value in trained.weights.items() if name.startswith(DECODER)}
    weights = frozen | head_tensors(heads)
    weights |= {COUNTS: heads[COUNTS]} if COUNTS in heads else {}
    decoder.load_state_dict({name.removeprefix("decoder."): t for name, t in weights.items()})
    return decoder.eval()


def _acceptance(content: object, statistics: Path) -> dict[str, Any]:
    """Return the card's ``acceptance``: the author's name of the data, and measured figures."""
    measured = read_report(statistics)["set"]
    return {
        "data": content.get("data") if isinstance(content, Mapping) else None,
        "utterances": measured["num_utterances"],
        "tokens_per_call": round(measured["tokens_per_call"], 3),
        "per_head": [round(share, 3) for share in measured["acceptance_per_head"]],
    }
