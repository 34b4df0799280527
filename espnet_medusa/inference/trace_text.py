"""Traces of decodings with the texts of their tokens; the format: docs/see_a_decoding.md."""

import re
from collections.abc import Sequence
from typing import Any

from espnet_medusa.decoding.search.state import SearchState
from espnet_medusa.networks.whisper.transcript import BROKEN

SYMBOL = re.compile(r"<[^<>\s]+>")  # such as a timestamp or a language
SPACE = "<space>"  # a token of ESPnet's character vocabularies


class TraceText:
    """Converts traces; arguments are ESPnet's. Without ``tokenizer``, texts are joined tokens."""

    def __init__(self, converter: Any, tokenizer: Any):
        self.converter, self.tokenizer = converter, tokenizer

    def passages(self, state: SearchState) -> list[dict[str, Any]] | None:
        """Return the trace of an utterance that is decoded as a whole; None: it was not traced."""
        if state.trace is None:
            return None
        attempt = {"chosen": True, **self.describe(state.trace.result)}
        return [{"start_s": 0.0, "end_s": None, "attempts": [attempt]}]

    def describe(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add ``texts`` by token id to ``Trace.result``, and a text to each of its ``tokens``."""
        nodes = [node for call in result["calls"] for node in call["nodes"]]
        ids = {node[1] for node in nodes} | {token for node in nodes for token, _ in node[5]}
        ids |= {token for token, *_ in result["tokens"]}
        written = self.pieces([token for token, *_ in result["tokens"]])
        names = "id", "call", "by", "step"
        tokens = [
            {**dict(zip(names, row, strict=True)), "text": text, "special": special}
            for row, (text, special) in zip(result["tokens"], written, strict=True)
        ]
        texts = {token: self.text(token) for token in sorted(ids)}
        return {**result, "tokens": tokens, "texts": texts}

    def text(self, token: int) -> str:
        """Return the text of a token alone, with the space before it."""
        piece = self._piece(token)
        if is_symbol(piece):
            return piece
        return " " * piece.startswith("▁") + self._join([piece])

    def pieces(self, tokens: Sequence[int]) -> list[tuple[str, bool]]:
        """Return the part of a text that each token adds, and whether it is a symbol.

        A character of several tokens belongs to the last of them.
        """
        texts, before, spoken = [], "", []
        for piece in map(self._piece, tokens):
            if is_symbol(piece):
                texts.append((piece, True))
                continue
            spoken.append(piece)
            text = self._join(spoken).rstrip(BROKEN)
            texts.append((text[len(before) :], False))
            before = max(before, text, key=len)
        return texts

    def _piece(self, token: int) -> str:
        """Return the name of a token; its id if ESPnet's converter has no name or leaves it out."""
        return next(filter(None, self.converter.ids2tokens([token])), f"<{token}>")

    def _join(self, pieces: list[str]) -> str:
        return "".join(pieces) if self.tokenizer is None else self.tokenizer.tokens2text(pieces)


def is_symbol(piece: str) -> bool:
    """Return whether a token is no text, such as a timestamp."""
    return SYMBOL.fullmatch(piece) is not None and piece != SPACE
