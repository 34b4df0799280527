"""Whisper's training labels for ESPnet: prompt and text, with one language per utterance."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from espnet2.train.preprocessor import CommonPreprocessor

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import join_words, read_table
from espnet_medusa.networks.whisper.token_types import WHISPER_TYPES
from espnet_medusa.networks.whisper.tokens import (
    TRANSCRIBE,
    hugging_face_tokenizer,
    read_whisper_tokens,
)


class WhisperPreprocessor(CommonPreprocessor):
    """Makes Whisper's labels (``preprocessor: whisper``); arguments are ``preprocessor_conf``.

    A label is language, task, the no-timestamps token, a space and the text. ESPnet's model adds
    start (``sym_sos``) and end. Raises InputError if token type, tokenizer or language is not
    Whisper's.

    Args:
        train: Whether noise and reverberation may be added.
        language: Language code; None for English-only models.
        task: ``transcribe`` or ``translate``.
        utt2lang: Kaldi file, utterance to language code, which overrides ``language``.
        leading_space: Whether texts begin with a space, as Whisper's do.
        options: ESPnet's options; ``token_type`` is ``hugging_face`` or one of Whisper's.
    """

    def __init__(
        self,
        train: bool,
        language: str | None = "en",
        task: str = TRANSCRIBE,
        utt2lang: str | None = None,
        leading_space: bool = True,
        **options,
    ):
        if options.get("token_type") not in (None, "hugging_face", *WHISPER_TYPES):
            raise InputError(
                f"token_type: {options['token_type']}; allowed with preprocessor: whisper: "
                f"{', '.join(WHISPER_TYPES)}, and hugging_face with bpemodel: the folder of "
                "Whisper's tokenizer"
            )
        super().__init__(train, **options)
        self.leading_space = leading_space
        self.prefixes: Mapping[str | None, list[int]] = {}
        self.languages: Mapping[str, str] = {}
        self.language = language
        if self.tokenizer is None:
            return
        if utt2lang is not None:
            self.languages = read_table(Path(utt2lang))
        self.vocabulary = hugging_face_tokenizer(self.token_id_converter)
        tokens = read_whisper_tokens(self.vocabulary)
        self.prefixes = {
            code: tokens.prompt(code, task)[1:] for code in {language, *self.languages.values()}
        }

    def __call__(self, uid: str, data: dict) -> dict[str, np.ndarray]:
        """Return ESPnet's samples, and the text as token ids (L,)."""
        data = self._speech_process(data)
        # Cached states come with token ids, prompt included.
        if isinstance(data.get(self.text_name), str) and self.tokenizer is not None:
            text = self.text_cleaner(join_words(data[self.text_name])).strip()
            tokens = self.vocabulary.tokenize(" " + text if self.leading_space else text)
            ids = self.vocabulary.convert_tokens_to_ids(tokens)
            prefix = self.prefixes[self.languages.get(uid, self.language)]
            data[self.text_name] = np.array([*prefix, *ids], dtype=np.int64)
        return data
