"""Heads that predict several next tokens from one hidden state, by their config names."""

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_choice
from espnet_medusa.networks.heads.autoregressive import AttendingHeads, RecurrentHeads
from espnet_medusa.networks.heads.base import HeadOptions, Heads, Trunk
from espnet_medusa.networks.heads.parallel import (
    BlockHeads,
    LatentHeads,
    LinearHeads,
    ProjectionHeads,
)

HEAD_TYPES: dict[str, type[Heads]] = {
    "linear": LinearHeads,
    "block": BlockHeads,
    "recurrent": RecurrentHeads,
    "attending": AttendingHeads,
    "projection": ProjectionHeads,
    "latent": LatentHeads,
}
NO_HEADS = "none"


def build_heads(kind: str, trunk: Trunk, options: HeadOptions) -> Heads | None:
    """Build heads by their config name; return None for ``none`` or K = 0.

    Raise InputError if the name is unknown or an option is not allowed for it.
    """
    check_choice(kind, [NO_HEADS, *HEAD_TYPES], "decoder_conf.heads")
    options.check()
    if kind == NO_HEADS or options.num_heads == 0:
        return None
    for name, default in vars(HeadOptions()).items():
        value = getattr(options, name)
        kinds = [other for other, heads in HEAD_TYPES.items() if name in heads.allowed]
        if value != default and kind not in kinds:
            where = f"decoder_conf.heads_conf.{name}: {value}"
            raise InputError(f"{where}; only allowed for heads: {', '.join(kinds)}; remove it")
    return HEAD_TYPES[kind](trunk, options)
