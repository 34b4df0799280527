"""A decoder that writes what it is told, and a CTC branch that hears what it is told."""

import random

import torch
from clairvoyant import PathDecoder

from espnet_medusa.tree.proposer import DraftContext, DraftInput
from espnet_medusa.tree.tree_decoder import NodeOutputs


def ctc_context(roots, memory, lengths):
    """The start of a drafter that reads encoder output only."""
    inputs = [DraftInput(row[:size], []) for row, size in zip(memory, lengths, strict=True)]
    return DraftContext(roots, memory.device, inputs)


class ScriptedDecoder(PathDecoder):
    """Says the token that stands at its place in the text, whatever was before.

    Args:
        decoder: Keeps the tree.
        texts: By the prompt's first token.
        prompt_length: P.
        vocab_size: V.
        eos: Behind the text.
    """

    def __init__(self, decoder, texts, prompt_length, vocab_size, eos):
        super().__init__(decoder)
        self.texts, self.prompt_length = texts, prompt_length
        self.vocab_size, self.eos = vocab_size, eos

    def extend(self, state, tokens, parents):
        paths = super().extend(state, tokens, parents).head_input
        return NodeOutputs(paths, paths)

    def logits(self, hidden):
        tokens = []
        for path in hidden.tolist():
            text, place = self.texts[path[0]], sum(token >= 0 for token in path)
            place -= self.prompt_length
            tokens.append(text[place] if place < len(text) else self.eos)
        return 9.0 * torch.nn.functional.one_hot(torch.tensor(tokens), self.vocab_size)


class ScriptedCTC:
    """Log-probabilities whose greedy hypothesis is a text: each token, then a blank.

    Args:
        texts: U lists of tokens.
        memory: (U, S, D), by which utterances are told apart.
        blank: The last class.
        sure: Probability of the best class of each frame: of all utterances, or U.
    """

    def __init__(self, texts, memory, blank, sure=0.9):
        shares = [sure] * len(texts) if isinstance(sure, float) else sure
        told = zip(memory, texts, shares, strict=True)
        self.told = {float(row[0, 0]): (text, share) for row, text, share in told}
        self.blank = blank

    def __call__(self, memory):
        text, sure = self.told[float(memory[0, 0, 0])]
        labels = [self.blank]
        for token in text:
            labels += [token, self.blank]
        rest = (1 - sure) / self.blank
        probabilities = torch.full((1, len(labels), self.blank + 1), rest)
        probabilities[0, torch.arange(len(labels)), torch.tensor(labels)] = sure
        return probabilities.log()


def edited(text: list[int], num_edits: int, vocab_size: int, rng: random.Random) -> list[int]:
    """The text with so many tokens substituted, put in or left out."""
    text = [*text]
    for _ in range(num_edits):
        place, token = rng.randrange(len(text) or 1), rng.randrange(vocab_size)
        kind = rng.choice(["substitute", "insert", "delete"])
        text[place : place + (kind != "insert")] = [] if kind == "delete" else [token]
    return text
