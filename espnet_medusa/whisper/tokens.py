"""Whisper's text: its tokenizer without a network, its prompt, and the tokens that it suppresses.

Vocabulary and languages are those that openai-whisper carries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from espnet_medusa.errors import InputError
from espnet_medusa.whisper.ctranslate2_file import BINARY

TOKENIZER = "tokenizer.json"
TRANSCRIBE, TRANSLATE = "transcribe", "translate"
TASKS = (TRANSCRIBE, TRANSLATE)
DETECT = "detect"
START, END = "<|startoftranscript|>", "<|endoftext|>"
# Vocabulary size to openai-whisper's file and its number of languages.
VOCABULARIES = {51864: ("gpt2", 99), 51865: ("multilingual", 99), 51866: ("multilingual", 100)}

# What OpenAI suppresses (Radford et al., arXiv 2212.04356; whisper/decoding.py): annotations of
# speakers and sounds. One symbol that takes several tokens is suppressed by its first.
QUOTES_AND_BRACKETS = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』']
ANNOTATIONS = [
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
]
MUSIC = [*"♩♪♫♬♭♮♯"]
NOT_BEFORE_A_WORD = [" -", " '"]


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Whisper's tokenizer from openai-whisper's files; ``save_pretrained`` makes a folder of it.

    Args:
        vocab_size: 51864 (English only), 51865 (99 languages) or 51866 (100, large-v3).

    Raises:
        InputError: Another size.
    """
    if vocab_size not in VOCABULARIES:
        raise InputError(
            f"vocabulary of {vocab_size} tokens: not one of OpenAI's "
            f"({', '.join(map(str, VOCABULARIES))}); give the model's own tokenizer folder"
        )
    return _with_end(_openais(vocab_size))  # which copies it


@cache
def _openais(vocab_size: int) -> Tokenizer:
    """Of openai-whisper's files: a second of work."""
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from whisper import tokenizer as openai  # Slow to import.

    name, num_languages = VOCABULARIES[vocab_size]
    encoding = openai.get_encoding(name, num_languages)
    ids = {token: encoding.encode_single_token(token) for token in encoding.special_tokens_set}
    converter = TikTokenConverter(
        str(Path(openai.__file__).with_name("assets") / f"{name}.tiktoken"),
        pattern=encoding._pat_str,
        extra_special_tokens=sorted(ids, key=ids.get),
    )
    return converter.converted()


def _with_end(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """transformers' tokenizer around that of ``tokenizers``; a name not in it would be added."""
    roles = ("bos_token", "eos_token", "unk_token", "pad_token")
    known = tokenizer.token_to_id(END) is not None
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        **(dict.fromkeys(roles, END) if known else {}),
    )


@dataclass(frozen=True)
class WhisperTokens:
    """Ids of what is no text.

    Attributes:
        start, end: Of a transcript.
        languages: Code to id; empty for models of English alone.
        transcribe, translate: Tasks.
        no_timestamps: The last of the prompt; the times follow it, from 0 s on.
        language_model: Of prompts that nobody uses.
        previous: Before the text of the window before.
        no_speech: What the decoder knows silence by.
        annotations: Text tokens that OpenAI suppresses.
        blank: Text tokens that do not come first.
    """

    start: int
    end: int
    languages: dict[str, int]
    transcribe: int
    translate: int
    no_timestamps: int
    language_model: int
    previous: int
    no_speech: int
    annotations: tuple[int, ...]
    blank: tuple[int, ...]

    def prompt(
        self, language: str | None, task: str = TRANSCRIBE, timestamps: bool = False
    ) -> list[int]:
        """What a transcript starts from.

        Args:
            language: Its code; not looked at by models of English alone.
            task: ``transcribe``, or ``translate`` into English.
            timestamps: Whether it has timestamps.

        Raises:
            InputError: A language or task that the model does not have.
        """
        if task not in TASKS:
            raise InputError(f"task: {task!r}; allowed: {', '.join(TASKS)}")
        last = [] if timestamps else [self.no_timestamps]
        if not self.languages:
            if task != TRANSCRIBE or language not in (None, "en"):
                raise InputError(
                    f"language: {language!r}, task: {task!r}; this model knows English alone: "
                    "allowed are en and transcribe"
                )
            return [self.start, *last]
        if language not in self.languages:
            raise InputError(
                f"language: {language!r}; allowed: {DETECT} (when decoding) or one of "
                f"{' '.join(sorted(self.languages))}"
            )
        chosen = self.transcribe if task == TRANSCRIBE else self.translate
        return [self.start, self.languages[language], chosen, *last]

    @property
    def first_time(self) -> int:
        """The timestamp of 0 s."""
        return self.no_timestamps + 1

    @cached_property
    def prompts(self) -> list[int]:
        """Ids of all that prompts are made of."""
        known = {self.start, self.transcribe, self.translate, self.no_timestamps}
        return sorted(known | {*self.languages.values()})

    @cached_property
    def suppressed(self) -> list[int]:
        """Ids that never come, as OpenAI's generation configs list them."""
        others = self.language_model, self.previous, self.no_speech
        tasks = (self.transcribe, self.translate)
        return sorted({*self.annotations, *others, *tasks, self.start})

    @cached_property
    def begin_suppressed(self) -> list[int]:
        """Ids that do not come first."""
        return sorted({*self.blank, self.end})


def default_symbols(token_list: Sequence[str]) -> tuple[str, str]:
    """Start and end of a text where no option names them: Whisper's, or ESPnet's own."""
    return (START, END) if START in token_list else ("<sos/eos>", "<sos/eos>")


def hugging_face_tokenizer(converter: Any) -> Any:
    """The tokenizer behind ESPnet's converter of ids, of token type hugging_face or Whisper's."""
    return getattr(converter.tokenizer, "tokenizer", converter.tokenizer)


def read_whisper_tokens(tokenizer: PreTrainedTokenizerBase) -> WhisperTokens:
    """Find Whisper's special tokens in a tokenizer.

    Raises:
        InputError: It lacks one.
    """
    from whisper.tokenizer import LANGUAGES

    vocabulary = tokenizer.get_vocab()

    def find(*names: str) -> int:
        for name in names:
            if name in vocabulary:
                return vocabulary[name]
        raise InputError(f"tokenizer: no token {names[0]}; give that of a Whisper model")

    ids = {code: vocabulary.get(f"<|{code}|>") for code in LANGUAGES}
    languages = {code: number for code, number in ids.items() if number is not None}
    # English models have the languages' ids, too, and never saw them.
    multilingual = find(START) != 50257
    return WhisperTokens(
        start=find(START),
        end=find(END),
        languages=languages if multilingual else {},
        transcribe=find("<|transcribe|>"),
        translate=find("<|translate|>"),
        no_timestamps=find("<|notimestamps|>"),
        language_model=find("<|startoflm|>"),
        previous=find("<|startofprev|>"),
        no_speech=find("<|nospeech|>", "<|nocaptions|>"),
        annotations=tuple(_annotations(tokenizer)),
        blank=tuple(_encode(tokenizer, " ")),
    )


def _annotations(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    found = {_encode(tokenizer, text)[0] for text in NOT_BEFORE_A_WORD}
    for symbol in (*QUOTES_AND_BRACKETS, *ANNOTATIONS, *MUSIC):
        for text in (symbol, " " + symbol):
            tokens = _encode(tokenizer, text)
            if len(tokens) == 1 or symbol in MUSIC:
                found.add(tokens[0])
    return sorted(found)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def load_tokenizer(folder: str | Path) -> Any:
    """A tokenizer folder, or a hub name.

    Raises:
        InputError: There is none.
    """
    from transformers import AutoTokenizer

    own = Path(folder) / TOKENIZER
    try:
        if (own.parent / BINARY).is_file() and own.is_file():
            # CTranslate2's config.json does not say what kind of tokenizer it is.
            return _with_end(Tokenizer.from_buffer(own.read_bytes()))
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # tokenizers raises nothing more special
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            f"tokenizer '{folder}': {reason}; run stage 5, or mend the path"
        ) from error
