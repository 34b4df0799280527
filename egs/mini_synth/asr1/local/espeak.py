"""Text to speech with the espeak-ng library of the pip package espeakng-loader.

The functions called here are declared in espeak-ng's ``speak_lib.h`` and ``espeak_ng.h`` (1.52).
"""

import ctypes
from functools import cache
from pathlib import Path

import numpy as np

try:
    import espeakng_loader
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "espeakng_loader carries the speech engine: pip install 'espnet_medusa[demo]'"
    ) from error

# Constants of speak_lib.h.
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_DONT_EXIT = 0x8000
_PARAMETER_RATE, _PARAMETER_VOLUME, _PARAMETER_PITCH = 1, 2, 3
_POSITION_CHARACTER = 1
_CHARACTERS_UTF8 = 1

# The engine saturates with some voices at its default, 100.
_VOLUME_PERCENT = 60

RATE_RANGE_WPM = (80, 450)
PITCH_RANGE = (0, 99)


class _Voice(ctypes.Structure):
    """``espeak_VOICE``."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_char_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("_unused", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("_spare", ctypes.c_void_p),
    ]


_SynthCallback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


def list_languages(data_dir: Path) -> list[str]:
    """Return the names that are allowed before a voice's plus sign, for example ``en-us``."""
    return sorted(path.name.lower() for path in (data_dir / "lang").rglob("*") if path.is_file())


def list_variants(data_dir: Path) -> list[str]:
    """Return the names that are allowed after a voice's plus sign, for example ``f3``."""
    return sorted(path.name for path in (data_dir / "voices" / "!v").iterdir())


class Speaker:
    """Synthesizes text.

    The engine keeps state (its random numbers, the phase of the voice's flutter) from call to
    call, and all speakers of a process share it. So samples are reproducible for the same calls
    in the same order in a fresh process, not for one call taken alone.

    Args:
        seed: of the engine's random numbers (breath noise, flutter); without a seed, the engine
            takes the time of day.

    Raises:
        RuntimeError: the library cannot start.
    """

    def __init__(self, seed: int = 0):
        self._data_dir = Path(espeakng_loader.get_data_path())
        self._library, self.sample_rate = _start_engine(self._data_dir)
        self._library.espeak_ng_SetRandSeed(seed)
        self._chunks: list[np.ndarray] = []
        self._callback = _SynthCallback(self._collect)

    def speak(
        self, text: str, voice: str, rate_wpm: int = 175, pitch: int = 50
    ) -> tuple[np.ndarray, int]:
        """Synthesize one text.

        Args:
            voice: language and optional variant, for example ``en-us+f3``.
            pitch: 50 is the voice's own.

        Returns:
            Samples (float32, within -1..1, shape (N,)) and their rate in Hz.

        Raises:
            ValueError: no text, a voice that espeak-ng lacks, a rate or pitch out of range.
            RuntimeError: the engine failed.
        """
        if not text.strip():
            raise ValueError("text: nothing to speak (it is empty)")
        _require_range("rate_wpm", rate_wpm, RATE_RANGE_WPM)
        _require_range("pitch", pitch, PITCH_RANGE)
        self._set_voice(voice)
        library = self._library
        library.espeak_SetParameter(_PARAMETER_RATE, rate_wpm, 0)
        library.espeak_SetParameter(_PARAMETER_PITCH, pitch, 0)
        library.espeak_SetParameter(_PARAMETER_VOLUME, _VOLUME_PERCENT, 0)
        # Every time, because another speaker of this process may have changed the voice.
        library.espeak_SetSynthCallback(self._callback)
        self._chunks = []
        encoded = text.encode()
        status = library.espeak_Synth(
            encoded, len(encoded) + 1, 0, _POSITION_CHARACTER, 0, _CHARACTERS_UTF8, None, None
        )
        if status != 0 or not self._chunks:
            raise RuntimeError(f"espeak-ng gave no audio for {text!r} (voice {voice}): {status}")
        samples = np.concatenate(self._chunks).astype(np.float32) / 32768
        return samples, self.sample_rate

    def _collect(self, samples, n_samples, _events) -> int:
        if samples and n_samples > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (n_samples,)).copy())
        return 0  # continue

    def _set_voice(self, voice: str) -> None:
        """Set the voice and check it: espeak-ng accepts an unknown variant silently."""
        language, _, variant = voice.partition("+")
        status = self._library.espeak_SetVoiceByName(voice.encode())
        languages = list_languages(self._data_dir) if status != 0 else []
        if status != 0:
            known = [name for name in languages if name[:2] == language[:2].lower()] or languages
            raise ValueError(
                f"voice {voice!r}: espeak-ng cannot load language {language!r} "
                f"(status {status}); it has files for: {' '.join(known)}"
            )
        identifier = self._library.espeak_GetCurrentVoice().contents.identifier.decode()
        found_language, _, found_variant = Path(identifier).name.partition("+")
        if (found_language.lower(), found_variant) != (language.lower(), variant):
            raise ValueError(
                f"voice {voice!r}: espeak-ng took {identifier!r} instead; "
                f"variants: {' '.join(list_variants(self._data_dir))}"
            )


@cache
def _start_engine(data_dir: Path) -> tuple[ctypes.CDLL, int]:
    """Return the library and its sample rate in Hz; a second start may crash."""
    library = _declare(ctypes.CDLL(espeakng_loader.get_library_path()))
    sample_rate = library.espeak_Initialize(
        _AUDIO_OUTPUT_SYNCHRONOUS, 0, str(data_dir).encode(), _INITIALIZE_DONT_EXIT
    )
    if sample_rate <= 0:
        raise RuntimeError(
            f"{data_dir}: espeak-ng cannot start with this data folder (a path of 160 "
            "characters or more is too long for it); reinstall espeakng-loader, or move the "
            "Python environment to a shorter path"
        )
    return library, sample_rate


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare argument and result types that are not ctypes' default, int."""
    library.espeak_GetCurrentVoice.restype = ctypes.POINTER(_Voice)
    library.espeak_SetSynthCallback.argtypes = [_SynthCallback]
    library.espeak_SetSynthCallback.restype = None
    library.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
    library.espeak_Synth.argtypes = [
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_uint,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_uint,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    return library


def _require_range(name: str, value: int, allowed: tuple[int, int]) -> None:
    low, high = allowed
    if not low <= value <= high:
        raise ValueError(f"{name}={value}: must be {low} to {high}")
