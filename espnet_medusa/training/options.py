"""``model_conf`` of ``model: medusa``."""

from dataclasses import dataclass, field
from typing import Any

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_above, check_at_least, check_choice

LOSS_WEIGHTS = (
    "base_loss_weight",
    "head_loss_weight",
    "head_loss_decay",
    "kl_weight",
    "state_weight",
    "mwer_weight",
)
FROZEN_PARTS = ("nothing", "all_but_last_layer", "all")


@dataclass(frozen=True)
class TrainingOptions:
    """``model_conf`` of ``model: medusa``, beside ESPnet's own keys.

    The decoder's loss is the weighted mean of the heads' cross-entropies plus ``kl_weight`` times
    the mean of their divergences and ``state_weight`` times that of their states' distances.
    """

    base_loss_weight: float = 1.0  # 0 where the base is frozen
    head_loss_weight: float = 1.0  # of the first head
    head_loss_decay: float = 1.0  # head k weighs head_loss_weight * decay^(k - 1)
    kl_weight: float = 0.0  # Whisper-Medusa: 0.01
    # Of the distance between what a head reads out and the decoder's own last state at the token
    # that it drafts for (EAGLE's regression, arXiv 2401.15077): more to learn from than one label.
    state_weight: float = 0.0
    # Of the expected word errors of a threshold beam search, beside all other losses; 0: no search.
    mwer_weight: float = 0.0
    mwer_beam: int = 4
    mwer_threshold: float = 0.8
    # Of encoder and decoder, whatever their depth (ESPnet's freeze_param takes names); the last
    # layer is the decoder's. Heads always train.
    freeze_whisper: str = "nothing"
    # Tokens that heads learn to draft, the most frequent of training; None: all. Labels outside
    # count in no loss and no accuracy, the base head's neither.
    draft_vocab_size: int | None = None
    # Units of the CTC branch: the first of a byte-pair vocabulary such as Whisper's, 256 (bytes) or
    # more; None: the decoder's tokens.
    ctc_units: int | None = None
    # Between the encoder and CTC over units: one of ESPnet's encoders, such as e_branchformer.
    ctc_block: str | None = None
    ctc_block_conf: dict[str, Any] | None = field(default_factory=dict)


def check_training_options(options: TrainingOptions) -> None:
    """Raises:
    InputError: A value is out of range, or allowed only with another.
    """
    for name in LOSS_WEIGHTS:
        check_at_least(getattr(options, name), 0.0, f"model_conf.{name}")
    check_at_least(options.mwer_beam, 2, "model_conf.mwer_beam")
    check_above(options.mwer_threshold, 0, "model_conf.mwer_threshold", at_most=1)
    check_choice(options.freeze_whisper, FROZEN_PARTS, "model_conf.freeze_whisper")
    if options.draft_vocab_size is not None:
        check_at_least(options.draft_vocab_size, 1, "model_conf.draft_vocab_size")
    if options.ctc_block is not None and options.ctc_units is None:
        raise InputError("model_conf.ctc_block: allowed with ctc_units")
