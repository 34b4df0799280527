"""Plan the utterances of the corpus: text, voice, speed, pitch and noise."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from espeak import PITCH_RANGE, RATE_RANGE_WPM
from sentences import Language


@dataclass(frozen=True)
class CorpusOptions:
    """Options of the corpus; two runs with equal options make equal files.

    Each field is also a command-line option of ``make_corpus.py``.
    """

    language: str = field(default="en", metadata={"help": "name of a file in local/languages"})
    minutes: float = field(default=300.0, metadata={"help": "speech in the training set"})
    dev_utterances: int = field(default=80, metadata={"help": "utterances in the dev set"})
    test_utterances: int = field(default=120, metadata={"help": "utterances in the test set"})
    test_unseen_fraction: float = field(
        default=0.2, metadata={"help": "share of the test set with voices that are in no other set"}
    )
    voices: int = field(
        default=0, metadata={"help": "number of seen voices, of all accents; 0: all"}
    )
    min_rate_wpm: int = field(default=130, metadata={"help": "slowest speech, words per minute"})
    max_rate_wpm: int = field(default=190, metadata={"help": "fastest speech, words per minute"})
    min_pitch: int = field(default=35, metadata={"help": "lowest pitch; 50 is the voice's own"})
    max_pitch: int = field(default=65, metadata={"help": "highest pitch, 99 at most"})
    min_snr_db: float = field(default=12.0, metadata={"help": "loudest noise"})
    max_snr_db: float = field(default=40.0, metadata={"help": "softest noise"})
    seed: int = field(default=0, metadata={"help": "seed of all random choices"})
    suffix: str = field(
        default="", metadata={"help": "suffix of the sets' names, for example _de: train_de"}
    )

    @property
    def set_names(self) -> tuple[str, str, str]:
        """Names of the training, dev and test set."""
        return f"train{self.suffix}", f"dev{self.suffix}", f"test{self.suffix}"

    def __post_init__(self):
        for name in ("minutes", "dev_utterances", "test_utterances"):
            if getattr(self, name) <= 0:
                raise ValueError(f"--{name} {getattr(self, name)}: must be above 0")
        if self.voices < 0:
            raise ValueError(f"--voices {self.voices}: must be 0 (all) or more")
        if not 0 <= self.test_unseen_fraction <= 1:
            raise ValueError(f"--test_unseen_fraction {self.test_unseen_fraction}: must be 0 to 1")
        for name in ("rate_wpm", "pitch", "snr_db"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low > high:
                raise ValueError(f"--min_{name} {low}: must not be above --max_{name} {high}")
        for name, allowed in (("rate_wpm", RATE_RANGE_WPM), ("pitch", PITCH_RANGE)):
            for option in (f"min_{name}", f"max_{name}"):
                value = getattr(self, option)
                if not allowed[0] <= value <= allowed[1]:
                    raise ValueError(f"--{option} {value}: must be {allowed[0]} to {allowed[1]}")


@dataclass(frozen=True)
class Utterance:
    """One utterance to synthesize.

    Attributes:
        utterance_id: ``<speaker>-<number>``.
        set_name: one of :attr:`CorpusOptions.set_names`.
        speaker: the voice's name in letters, digits and underscores only.
        text: words, lower case.
        voice, rate_wpm, pitch: arguments of :meth:`espeak.Speaker.speak`.
        snr_db, noise_exponent: arguments of :func:`noise.add_noise`.
        level_db: mean level of the result, dB re full scale.
        lead_s, tail_s: seconds of only noise before and after the speech.
        seed: seed of the noise.
    """

    utterance_id: str
    set_name: str
    speaker: str
    text: str
    voice: str
    rate_wpm: int
    pitch: int
    snr_db: float
    noise_exponent: float
    level_db: float
    lead_s: float
    tail_s: float
    seed: int


def speaker_name(voice: str) -> str:
    """Convert a voice's name to a speaker id: ``en-us+f3`` becomes ``enus_f3``.

    Kaldi requires the same order of utterances by id and by speaker. Without hyphens in speaker
    ids this holds, because the hyphen of ``<speaker>-<number>`` sorts before all other characters.
    """
    return voice.replace("-", "").replace("+", "_")


def plan_utterances(language: Language, options: CorpusOptions) -> Iterator[Utterance]:
    """Yield the dev set, the test set, then infinitely many training utterances.

    All sentences are different, so dev and test sentences are unseen in training. Only the last
    ``test_unseen_fraction`` of the test utterances have unseen voices.

    Raises:
        ValueError: the language has too few sentences or voices, or lacks unseen voices.
    """
    seen_voices = _evenly_spaced(language.seen_voices, options.voices)
    n_unseen = round(options.test_utterances * options.test_unseen_fraction)
    if n_unseen and not language.unseen_voices:
        raise ValueError(
            f"language {options.language!r} has no unseen_voices: --test_unseen_fraction must be 0"
        )
    n_held_out = options.dev_utterances + options.test_utterances
    generator = random.Random(options.seed)
    train, dev, test = options.set_names
    for number, text in enumerate(language.sentences(generator)):
        voices = seen_voices
        if number < options.dev_utterances:
            set_name = dev
        elif number < n_held_out:
            set_name = test
            if number >= n_held_out - n_unseen:
                voices = language.unseen_voices
        else:
            set_name = train
        voice = generator.choice(voices)
        speaker = speaker_name(voice)
        yield Utterance(
            utterance_id=f"{speaker}-{number:06d}",
            set_name=set_name,
            speaker=speaker,
            text=text,
            voice=voice,
            rate_wpm=generator.randint(options.min_rate_wpm, options.max_rate_wpm),
            pitch=generator.randint(options.min_pitch, options.max_pitch),
            snr_db=generator.uniform(options.min_snr_db, options.max_snr_db),
            noise_exponent=generator.uniform(0, 1),
            level_db=generator.uniform(-32, -20),
            lead_s=generator.uniform(0.05, 0.25),
            tail_s=generator.uniform(0.05, 0.25),
            seed=generator.getrandbits(32),
        )


def _evenly_spaced(voices: Sequence[str], count: int) -> Sequence[str]:
    """Return `count` voices of a list sorted by accent; 0: all."""
    if count > len(voices):
        raise ValueError(f"--voices {count}: the language file has {len(voices)}")
    return [voices[i * len(voices) // count] for i in range(count)] if count else voices
