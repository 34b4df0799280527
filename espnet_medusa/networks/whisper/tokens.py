"""Whisper's tokenizer, special tokens, prompts, and suppressed tokens.

Vocabulary and languages come from openai-whisper's files; no network is needed.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from espnet_medusa.data.errors import InputError, first_line
from espnet_medusa.data.vocabulary.byte_pairs import byte_alphabet
from espnet_medusa.networks.whisper.ctranslate2_file import BINARY

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TRANSCRIBE, TRANSLATE = "transcribe", "translate"
TASKS = (TRANSCRIBE, TRANSLATE)
DETECT = "detect"
START, END = "<|startoftranscript|>", "<|endoftext|>"
NO_TIMESTAMPS = "<|notimestamps|>"
TIMESTAMPS = tuple(f"<|{step * 0.02:.2f}|>" for step in range(1501))  # 0 s to 30 s
HOW_TO_GIVE = "give --tokenizer FOLDER, or --token_list FILE with one token per line"
# By vocabulary size: openai-whisper's file, and its number of languages.
VOCABULARIES = {51864: ("gpt2", 99), 51865: ("multilingual", 99), 51866: ("multilingual", 100)}
UNTIMED = {size - len(TIMESTAMPS): file for size, file in VOCABULARIES.items()}

# Symbols that OpenAI suppresses, because they annotate speakers and sounds (Radford et al., arXiv
# 2212.04356; whisper/decoding.py). Of MUSIC symbols, only the first token is suppressed.
QUOTES_AND_BRACKETS = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』']
ANNOTATIONS = [
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
]
MUSIC = [*"♩♪♫♬♭♮♯"]
NOT_BEFORE_A_WORD = [" -", " '"]


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Build Whisper's tokenizer from openai-whisper's files; raise InputError for another size."""
    if vocab_size not in VOCABULARIES | UNTIMED:
        allowed = ", ".join(map(str, VOCABULARIES))
        raise InputError(
            f"vocab_size: {vocab_size}; the model has no tokenizer, and OpenAI's have {allowed} "
            f"tokens; {HOW_TO_GIVE}"
        )
    return _fast_tokenizer(tokenizer_object=_convert_openai_files(vocab_size))  # copies it


@cache
def _convert_openai_files(vocab_size: int) -> Tokenizer:
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from whisper import tokenizer as openai  # Slow to import.

    name, num_languages = (VOCABULARIES | UNTIMED)[vocab_size]
    encoding = openai.get_encoding(name, num_languages)
    ids = {token: encoding.encode_single_token(token) for token in encoding.special_tokens_set}
    ids = {token: id for token, id in ids.items() if id < vocab_size}
    converter = TikTokenConverter(
        str(Path(openai.__file__).with_name("assets") / f"{name}.tiktoken"),
        pattern=encoding._pat_str,
        extra_special_tokens=sorted(ids, key=ids.get),
    )
    return converter.converted()


def _fast_tokenizer(**source: Any) -> PreTrainedTokenizerFast:
    """Wrap a tokenizer for transformers; if it has ``END``, use that as bos, eos, unk and pad."""
    tokenizer = PreTrainedTokenizerFast(clean_up_tokenization_spaces=False, **source)
    if tokenizer.backend_tokenizer.token_to_id(END) is not None:
        for role in ("bos_token", "eos_token", "unk_token", "pad_token"):
            setattr(tokenizer, role, END)
    return tokenizer


@dataclass(frozen=True)
class WhisperTokens:
    """Ids of Whisper's special tokens, and of the suppressed text tokens."""

    start: int  # of a transcript
    end: int  # of a transcript
    languages: dict[str, int]  # code to id; empty for English-only models
    transcribe: int  # task
    translate: int  # task
    no_timestamps: int  # last token of a prompt
    language_model: int  # <|startoflm|>, unused
    previous: int  # precedes the previous window's text
    no_speech: int  # its probability at the start detects silence
    annotations: tuple[int, ...]  # text tokens that OpenAI suppresses
    blank: tuple[int, ...]  # text tokens that are suppressed at the start
    times: range  # timestamps from 0 s on; empty if the vocabulary has none

    def prompt(
        self, language: str | None, task: str = TRANSCRIBE, timestamps: bool = False
    ) -> list[int]:
        """Return the prompt of a transcript; ``language`` may be None for English-only models.

        Raise InputError if the model does not have the language or the task.
        """
        if task not in TASKS:
            raise InputError(f"task: {task!r}; allowed: {', '.join(TASKS)}")
        last, given = [] if timestamps else [self.no_timestamps], language
        if language is not None and language not in self.languages:
            language = language_code(language)
        if not self.languages:
            if task != TRANSCRIBE or language not in (None, "en"):
                raise InputError(
                    f"language: {given!r}, task: {task!r}; this model is English-only: "
                    "allowed are en and transcribe"
                )
            return [self.start, *last]
        if language not in self.languages:
            codes = " ".join(sorted(self.languages))
            raise InputError(
                f"language: {given!r}; allowed: {DETECT} (when decoding), English names, {codes}"
            )
        chosen = self.transcribe if task == TRANSCRIBE else self.translate
        return [self.start, self.languages[language], chosen, *last]

    @property
    def first_time(self) -> int:
        """The timestamp of 0 s, or the first id after the symbols if there are no timestamps."""
        return self.times.start

    @cached_property
    def symbols(self) -> frozenset[int]:
        """Ids that are no text: symbols and timestamps. Tokens of fine-tuning follow these."""
        return frozenset([*range(self.end, self.no_timestamps + 1), *self.times])

    @cached_property
    def prompts(self) -> list[int]:
        """Ids of all prompt tokens."""
        known = {self.start, self.transcribe, self.translate, self.no_timestamps}
        return sorted(known | {*self.languages.values()})

    @cached_property
    def suppressed(self) -> list[int]:
        """Ids that are always suppressed, as in OpenAI's generation configs."""
        others = self.start, self.language_model, self.previous, self.no_speech
        ids = {*self.annotations, *others, self.transcribe, self.translate}
        return sorted(ids - {self.end})  # the start symbol of a checkpoint may be the end symbol

    @cached_property
    def begin_suppressed(self) -> list[int]:
        return sorted({*self.blank, self.end})


def language_code(language: str) -> str:
    """Return the code of a language, ``detect``, or an unknown name unchanged.

    As in openai-whisper, a language is a code or an English name, in any case. As in transformers,
    it may be a token, such as ``<|de|>``. As in ESPnet, it may be a code of ISO 639-3, such as
    ``deu``. Regions are ignored: ``pt-BR``.
    """
    from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    name = language.strip().lower().removeprefix("<|").removesuffix("|>")
    code = TO_LANGUAGE_CODE.get(name, name)
    if code in LANGUAGES or code == DETECT:
        return code
    standard = {standard_code(known): known for known in LANGUAGES}
    return standard.get(standard_code(name), language)


def standard_code(code: str) -> str | None:
    """Return the shortest code of a language's macrolanguage; None: it is no code."""
    from langcodes import Language, LanguageTagError

    try:
        return Language.get(code).prefer_macrolanguage().language
    except LanguageTagError:
        return None


def add_timestamps(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Add Whisper's timestamps if the tokenizer ends before them and the model has their ids."""
    first = tokenizer.get_vocab().get(NO_TIMESTAMPS, math.inf) + 1
    if first == len(tokenizer) <= vocab_size - len(TIMESTAMPS):
        tokenizer.add_tokens([*TIMESTAMPS], special_tokens=True)


def decode_added_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a byte-level tokenizer decode added tokens with letters such as "ö" or "é".

    Their names are text, but its decoder takes such letters for bytes.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(getattr(backend, "decoder", None), decoders.ByteLevel):
        return
    names = {added.content for added in tokenizer.added_tokens_decoder.values()}
    alphabet = byte_alphabet()
    odd = sorted(name for name in names if not name.isascii() and {*name} <= {*alphabet})
    signs = {byte: sign for sign, byte in alphabet.items()}
    bytes_of = {name: "".join(signs[byte] for byte in name.encode()) for name in odd}
    renamed = [decoders.Replace(Regex(f"^{re.escape(n)}$"), bytes_of[n]) for n in odd]
    if renamed:
        backend.decoder = decoders.Sequence([*renamed, decoders.ByteLevel()])


def unused_name(number: int) -> str:
    """Return the name in token lists of an id without a token."""
    return f"<unused{number}>"


def default_symbols(token_list: Sequence[str]) -> tuple[str, str]:
    """Return the default start and end symbols: Whisper's, or ESPnet's."""
    return (START, END) if START in token_list else ("<sos/eos>", "<sos/eos>")


def hugging_face_tokenizer(converter: Any) -> Any:
    """Return the tokenizer of ESPnet's converter, of token type hugging_face or Whisper's."""
    return getattr(converter.tokenizer, "tokenizer", converter.tokenizer)


def read_whisper_tokens(tokenizer: PreTrainedTokenizerBase) -> WhisperTokens:
    """Return Whisper's special tokens; raise InputError if the tokenizer lacks one."""
    from whisper.tokenizer import LANGUAGES

    vocabulary = tokenizer.get_vocab()

    def find(*names: str) -> int:
        for name in names:
            if name in vocabulary:
                return vocabulary[name]
        raise InputError(f"tokenizer: no token {names[0]}; give the tokenizer of a Whisper model")

    ids = {code: vocabulary.get(f"<|{code}|>") for code in LANGUAGES}
    languages = {code: number for code, number in ids.items() if number is not None}
    # English-only tokenizers have language tokens, too, which the models do not use.
    multilingual = find(START) != 50257
    return WhisperTokens(
        start=find(START),
        end=find(END),
        languages=languages if multilingual else {},
        transcribe=find("<|transcribe|>"),
        translate=find("<|translate|>"),
        no_timestamps=find(NO_TIMESTAMPS),
        times=_find_times(vocabulary),
        language_model=find("<|startoflm|>"),
        previous=find("<|startofprev|>"),
        no_speech=find("<|nospeech|>", "<|nocaptions|>"),
        annotations=tuple(_annotations(tokenizer)),
        blank=tuple(_encode(tokenizer, " ")),
    )


def _find_times(vocabulary: Mapping[str, int]) -> range:
    """Return the ids of the timestamps; a vocabulary may have fewer than 30 s, or none."""
    first = vocabulary.get(TIMESTAMPS[0], vocabulary[NO_TIMESTAMPS] + 1)
    names = enumerate(TIMESTAMPS)
    others = (place for place, name in names if vocabulary.get(name) != first + place)
    return range(first, first + next(others, len(TIMESTAMPS)))


def _annotations(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    suppressed = {_encode(tokenizer, text)[0] for text in NOT_BEFORE_A_WORD}
    for symbol in (*QUOTES_AND_BRACKETS, *ANNOTATIONS, *MUSIC):
        for text in (symbol, " " + symbol):
            tokens = _encode(tokenizer, text)
            if len(tokens) == 1 or symbol in MUSIC:
                suppressed.add(tokens[0])
    return sorted(suppressed)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def load_tokenizer(folder: str | Path) -> Any:
    """Load the tokenizer of a folder or hub name; raise InputError if that fails."""
    from transformers import AutoTokenizer

    file, config = Path(folder) / TOKENIZER, Path(folder) / TOKENIZER_CONFIG
    try:
        # transformers takes three times as long for a WhisperTokenizer, and 20 MB more memory.
        # CTranslate2's config.json does not contain the kind of tokenizer.
        whisper = config.is_file() and '"WhisperTokenizer' in config.read_text()
        if file.is_file() and (whisper or (file.parent / BINARY).is_file()):
            tokenizer = _fast_tokenizer(tokenizer_file=str(file))
        else:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        decode_added_tokens(tokenizer)
        return tokenizer
    except Exception as error:  # tokenizers raises plain Exception
        raise InputError(
            f"tokenizer '{folder}': {first_line(error)}; run asr.sh stage 5, or correct the path"
        ) from error
