"""Decode the utterances of a job with an s2t model (OWSM); outputs are ESPnet's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from espnet_medusa.inference.batches import Utterance
from espnet_medusa.inference.decoding import Decoding
from espnet_medusa.inference.job import PREVIOUS
from espnet_medusa.inference.journal import Decoded, NBestEntry
from espnet_medusa.inference.reader import Preprocess
from espnet_medusa.inference.utterance_decoder import UtteranceDecoder


@dataclass(frozen=True)
class S2TUtteranceDecoder(UtteranceDecoder):
    """Decodes in batches; ``speech2text`` is an ``S2TSpeech2Text``."""

    # ESPnet's preprocessing function, which tokenizes previous texts.
    preprocess: Preprocess | None = None

    def _decode_batch(self, utterances: Sequence[Utterance]) -> list[Decoding]:
        conditions = [self._condition(utterance) for utterance in utterances]
        return self.speech2text.decode([utterance.speech for utterance in utterances], conditions)

    def _condition(self, utterance: Utterance) -> dict[str, Any]:
        condition, text = {}, utterance.previous_text
        if utterance.language is not None:
            condition["lang_sym"] = f"<{utterance.language}>"
        if text is not None:
            condition[PREVIOUS] = text
            if self.preprocess is not None:
                condition[PREVIOUS] = self.preprocess(utterance.key, {PREVIOUS: text})[PREVIOUS]
        return condition

    def _decoded(self, key: str, decoding: Decoding) -> Decoded:
        nbest = [
            NBestEntry(
                *(text, [*token], [*token_int], str(hypothesis.score)),
                {} if no_special is None else {"text_nospecial": no_special},
            )
            for text, token, token_int, no_special, hypothesis in decoding.results
        ]
        for layer, tokens in (decoding.intermediate or {}).items():
            nbest[0].others[f"encoder_interctc_layer{layer}.txt"] = " ".join(tokens)
        language = nbest[0].token[0].strip("<>") if nbest[0].token else None
        return Decoded(key, nbest, decoding.statistics, language)
