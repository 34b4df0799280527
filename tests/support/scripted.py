"""Decoders and CTC branches whose output is given as a script."""

import random

import torch
from clairvoyant import PathDecoder
from tiny import bounds, random_memory, tiny_decoder

from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.acceptance import AcceptanceRule, exact
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.greedy import greedy_search
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftContext, DraftInput
from espnet_medusa.tree.tree_decoder import NodeOutputs


def draft_inputs(memory, lengths, prompt=()):
    """Return drafter inputs with the same prompt for each utterance."""
    return [DraftInput(row[:size], [*prompt]) for row, size in zip(memory, lengths, strict=True)]


def ctc_context(roots, memory, lengths):
    """Return the context of a drafter that reads encoder output only."""
    return DraftContext(roots, memory.device, draft_inputs(memory, lengths))


def path_from(prefix: Prefix, tokens) -> Prefix:
    """Return the prefix that follows ``prefix`` by ``tokens``."""
    for token in tokens:
        prefix = prefix.child(token)
    return prefix


class ScriptedDecoder(PathDecoder):
    """Predicts the token of a text at each position, whatever the preceding tokens are.

    Args:
        texts: Token ids by the first token of the prompt.
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
        # The other tokens of a large vocabulary have almost no probability in total.
        return 36.0 * torch.nn.functional.one_hot(torch.tensor(tokens), self.vocab_size)


class TokenIgnoringDecoder:
    """Replaces all tokens by token 0 and counts the calls, so that any vocabulary fits."""

    def __init__(self, decoder):
        self.decoder, self.calls = decoder, 0

    def __getattr__(self, name):
        return getattr(self.decoder, name)

    def extend(self, state, tokens, parents):
        self.calls += 1
        return self.decoder.extend(state, [[0 for _ in row] for row in tokens], parents)


def scripted_decoder(texts, vocab_size, eos):
    """Build a decoder that predicts ``texts[row]`` after the prompt ``[row, 1]``."""
    module = tiny_decoder(0, "none", vocab_size=2, max_target_positions=256)
    decoder = TokenIgnoringDecoder(build_runtime(module))
    return ScriptedDecoder(decoder, dict(enumerate(texts)), 2, vocab_size, eos)


def scripted_memory(count):
    """Return the encoder output and lengths that ``scripted_search`` decodes."""
    return random_memory(0, [5] * count)


def scripted_search(texts, proposer, shape, vocab_size, eos):
    """Decode greedily with a scripted decoder; check the texts and return the search states."""
    decoder = scripted_decoder(texts, vocab_size, eos)
    search = greedy_search(decoder, AcceptanceRule(exact), Constraints(eos), proposer, shape)
    prompts = torch.tensor([[row, 1] for row in range(len(texts))])
    states = search(*scripted_memory(len(texts)), prompts, bounds([200] * len(texts)))
    assert [state.tokens for state in states] == texts
    return states


def scripted_calls(*arguments):
    """Return the decoder calls of each utterance of ``scripted_search``."""
    return [state.statistics.decoder_calls for state in scripted_search(*arguments)]


class ScriptedCTC:
    """Log-probabilities whose greedy hypothesis is a text: each token, then a blank.

    Args:
        texts: U lists of tokens.
        memory: (U, S, D), whose first value identifies the utterance.
        sure: Probability of the best class of each frame, for all utterances or for each (U).
    """

    def __init__(self, texts, memory, blank, sure=0.9):
        shares = [sure] * len(texts) if isinstance(sure, float) else sure
        rows = zip(memory, texts, shares, strict=True)
        self.scripts = {float(row[0, 0]): (text, share) for row, text, share in rows}
        self.blank = blank

    def __call__(self, memory):
        text, sure = self.scripts[float(memory[0, 0, 0])]
        labels = [self.blank]
        for token in text:
            labels += [token, self.blank]
        rest = (1 - sure) / self.blank
        probabilities = torch.full((1, len(labels), self.blank + 1), rest)
        probabilities[0, torch.arange(len(labels)), torch.tensor(labels)] = sure
        return probabilities.log()


def edited(text: list[int], num_edits: int, vocab_size: int, rng: random.Random) -> list[int]:
    """Return the text after random substitutions, insertions and deletions of tokens."""
    text = [*text]
    for _ in range(num_edits):
        place, token = rng.randrange(len(text) or 1), rng.randrange(vocab_size)
        kind = rng.choice(["substitute", "insert", "delete"])
        text[place : place + (kind != "insert")] = [] if kind == "delete" else [token]
    return text
