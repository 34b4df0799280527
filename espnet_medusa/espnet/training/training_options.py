"""Options ``model_conf`` of ``model: medusa``."""

from dataclasses import dataclass, field
from typing import Any

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_above, check_at_least, check_choice

FROZEN_PARTS = ("nothing", "all_but_last_layer", "all")


@dataclass(frozen=True)
class TrainingOptions:
    """``model_conf`` of ``model: medusa``, in addition to ESPnet's own keys.

    The decoder's loss is the weighted mean of the heads' cross-entropies, plus ``kl_weight`` times
    the mean of their KL divergences, plus ``state_weight`` times the mean distance of their states.
    """

    base_loss_weight: float = 1.0  # 0 for a frozen base
    head_loss_weight: float = 1.0  # of the first head
    head_loss_decay: float = 1.0  # head k has weight head_loss_weight * decay^(k - 1)
    kl_weight: float = 0.0  # Whisper-Medusa: 0.01
    # Weight of the distance between a head's output and the decoder's last state at the drafted
    # token (EAGLE's regression, arXiv 2401.15077).
    state_weight: float = 0.0
    # Weight of the expected word errors of a threshold beam search; 0: no search.
    mwer_weight: float = 0.0
    mwer_beam: int = 4
    mwer_threshold: float = 0.8
    # Frozen parts of encoder and decoder, in the s2t task also CTC; the last layer is the
    # decoder's. Heads always train.
    freeze_whisper: str = "nothing"
    # Number of tokens that heads learn to draft, the most frequent ones in training; None: all.
    # Other labels are ignored in losses and accuracies, also for the base head.
    draft_vocab_size: int | None = None
    # Size of the CTC branch's vocabulary: the first units of a byte-pair vocabulary such as
    # Whisper's, 256 (bytes) or more; None: the decoder's tokens.
    ctc_units: int | None = None
    # One of ESPnet's encoders, such as e_branchformer, between the encoder and the CTC branch.
    ctc_block: str | None = None
    ctc_block_conf: dict[str, Any] | None = field(default_factory=dict)

    def __post_init__(self):
        for name, value in vars(self).items():
            if name.endswith(("_weight", "_decay")):
                check_at_least(value, 0.0, f"model_conf.{name}")
        check_at_least(self.mwer_beam, 2, "model_conf.mwer_beam")
        check_above(self.mwer_threshold, 0, "model_conf.mwer_threshold", at_most=1)
        check_choice(self.freeze_whisper, FROZEN_PARTS, "model_conf.freeze_whisper")
        if self.draft_vocab_size is not None:
            check_at_least(self.draft_vocab_size, 2, "model_conf.draft_vocab_size")
        if self.ctc_block is not None and self.ctc_units is None:
            raise InputError("model_conf.ctc_block: allowed with ctc_units")
