"""Utterances together on their way into encoders; nothing is computed twice."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from espnet_medusa.model.whisper_encoder import FeatureKind, HFWhisperEncoder
from espnet_medusa.runtime.encoder import build_encoder_runtime
from espnet_medusa.whisper.log_mel import SAMPLE_RATE_HZ

Encoded = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class SpeechEncoder:
    """An encoder with what goes before and behind it.

    Attributes:
        encode: ``(inputs (U, N, ...), lengths (U,))`` to memory (U, S, D) and frames (U,).
        whisper: Whose features the inputs are, with nothing before or behind it; None: ``encode``
            reads waveforms.
        together: Whether a batch gives what single utterances give.
        packed: Whether ``encode`` has weights of its own, so that ``whisper``'s are of no use.
    """

    encode: Callable[[torch.Tensor, torch.Tensor], Encoded]
    whisper: HFWhisperEncoder | None
    together: bool = True
    packed: bool = False

    def release(self) -> None:
        """Give back the memory of weights that ``encode`` has laid out anew."""
        if self.packed:
            self.whisper.release()


def whisper_encoder(encoder: HFWhisperEncoder, precision: str | None = None) -> SpeechEncoder:
    """Whisper's encoder alone.

    Args:
        encoder: Trained.
        precision: As the decode option ``encoder_precision``; None: the model's own.

    Raises:
        InputError: Nothing this device computes with.
    """
    runtime = build_encoder_runtime(encoder, precision)
    if runtime is not None:
        return SpeechEncoder(runtime, encoder, packed=True)
    return SpeechEncoder(lambda inputs, lengths: encoder(inputs, lengths)[:2], encoder)


def model_encoder(model: torch.nn.Module, precision: str | None = None) -> SpeechEncoder:
    """All that an ESPnet model does before its decoder.

    Args:
        model: Trained.
        precision: Of Whisper's encoder where nothing is before or behind it and nothing cropped,
            as for ``whisper_encoder``; other encoders compute in the model's own.

    Raises:
        InputError: Nothing this device computes with.
    """

    def encode(inputs: torch.Tensor, lengths: torch.Tensor) -> Encoded:
        memory, frames = model.encode(inputs, lengths)
        # A tuple holds the outputs of intermediate CTC, too.
        return (memory[0] if isinstance(memory, tuple) else memory), frames

    if not isinstance(model.encoder, HFWhisperEncoder):
        # ESPnet's encoders give other frames, and another number of them, beside longer audio;
        # its search takes all that one utterance gives.
        return SpeechEncoder(encode, None, together=False)
    bare = all(
        getattr(model, part) is None
        for part in ("frontend", "normalize", "preencoder", "postencoder")
    )
    # Features do not say where the audio ends.
    takes_features = bare and not model.encoder.crop_to_audio
    if takes_features:
        return whisper_encoder(model.encoder, precision)
    return SpeechEncoder(encode, None)


def encode_alike(one: SpeechEncoder, other: SpeechEncoder) -> bool:
    """Whether both are the same Whisper encoder, as distil-whisper's and its teacher's are."""
    if one.whisper is None or other.whisper is None:
        return False
    if (one.whisper.conf, one.whisper.subsampling) != (
        other.whisper.conf,
        other.whisper.subsampling,
    ):
        return False
    weights, others = one.whisper.state_dict(), other.whisper.state_dict()
    return all(torch.equal(weight, others[name]) for name, weight in weights.items())


class AudioBatch:
    """U utterances.

    Args:
        speeches: U times (samples,) in [-1, 1].
        device: Where encoders are.
        dtype: Of the samples there.
    """

    def __init__(self, speeches: Sequence[torch.Tensor], device: str, dtype: torch.dtype):
        lengths = [len(speech) for speech in speeches]
        self.lengths = torch.tensor(lengths, device=device)
        self.samples = pad_sequence(list(speeches), batch_first=True).to(device, dtype)
        self._features: dict[FeatureKind, Encoded] = {}
        self._encoded: dict[SpeechEncoder, Encoded] = {}

    def encode(self, encoder: SpeechEncoder) -> Encoded:
        """Memory (U, S, D) and its frames (U,)."""
        if encoder not in self._encoded:
            self._encoded[encoder] = self._encode(encoder)
        return self._encoded[encoder]

    @torch.no_grad()
    def _encode(self, encoder: SpeechEncoder) -> Encoded:
        if encoder.together:
            return encoder.encode(*self._inputs(encoder.whisper))
        alone = []
        for row, length in enumerate(self.lengths.tolist()):
            one = slice(row, row + 1)
            alone.append(encoder.encode(self.samples[one, :length], self.lengths[one])[0][0])
        frames = torch.tensor([len(memory) for memory in alone], device=self.samples.device)
        return pad_sequence(alone, batch_first=True), frames

    def branch(self) -> AudioBatch:
        """The same utterances and what was computed of them; what will be is not shared."""
        branch = copy.copy(self)
        branch._features, branch._encoded = dict(self._features), dict(self._encoded)
        return branch

    def _inputs(self, whisper: HFWhisperEncoder | None) -> Encoded:
        if whisper is None:
            return self.samples, self.lengths
        whisper.check_lengths(self.lengths)
        kind = whisper.feature_kind
        if kind not in self._features:
            self._features[kind] = whisper.features(self.samples, self.lengths)
        return self._features[kind]


def audio_limits(encoder: torch.nn.Module, train_args: Namespace) -> tuple[int, float | None]:
    """The sample rate in Hz that a model expects, and the longest audio it takes, if any."""
    window_samples = getattr(encoder, "window_samples", None)
    if window_samples is not None:
        return SAMPLE_RATE_HZ, window_samples / SAMPLE_RATE_HZ
    rate = (getattr(train_args, "frontend_conf", None) or {}).get("fs", SAMPLE_RATE_HZ)
    if isinstance(rate, str):
        rate = int(float(rate.lower().removesuffix("k")) * (1000 if "k" in rate.lower() else 1))
    return int(rate), None
