"""Random trees, whose nodes are compared with the trained module's forward of their paths."""

import math

import torch
from scripted import TokenTracker, new_places, path_of
from tiny import VOCAB_SIZE, utterances

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import MISSING, DraftContext
from espnet_medusa.decoding.tree.token_tree import ROOT, chain_parents

CLOSE = {"rtol": 0.0, "atol": 1e-5}


class Grown:
    """Growing trees with the tokens of their nodes: the forward of a path is the oracle."""

    def __init__(self, decoder, encoder_out, lengths, precision=None):
        self.decoder, self.runtime = decoder, TokenTracker(build_runtime(decoder, precision))
        self.encoder_out, self.lengths = encoder_out, lengths
        self.state = self.runtime.start(encoder_out, lengths)

    def extend(self, tokens, parents):
        """Extend the trees; return the outputs and (utterance, slot) of each packed row."""
        places = new_places(tokens, self.state.num_nodes)
        return self.runtime.extend(self.state, tokens, parents), places

    def extend_and_check(self, tokens, parents):
        outputs, places = self.extend(tokens, parents)
        assert len(outputs.hidden) == len(outputs.head_input) == len(places)
        logits = self.runtime.logits(outputs.hidden)
        for row in {row for row, _ in places}:
            packed = [index for index, place in enumerate(places) if place[0] == row]
            hidden, head_input = self.expected(row, [places[index][1] for index in packed])
            torch.testing.assert_close(outputs.hidden[packed], hidden, **CLOSE)
            torch.testing.assert_close(outputs.head_input[packed], head_input, **CLOSE)
            torch.testing.assert_close(logits[packed], self.decoder.logits(hidden), **CLOSE)

    def expected(self, row, slots):
        """Return the trained module's hidden states and head inputs (N, D) after nodes' paths."""
        paths = [torch.tensor(self.path(row, slot)) for slot in slots]
        tokens = torch.nn.utils.rnn.pad_sequence(paths, batch_first=True)
        encoder_out, lengths = self.utterance(row)
        audio = encoder_out.expand(len(paths), -1, -1), lengths.expand(len(paths))
        outputs = self.decoder.hidden_states(*audio, tokens)
        ends = torch.arange(len(paths)), torch.tensor([len(path) - 1 for path in paths])
        return outputs.hidden[ends], outputs.head_input[ends]

    def path(self, row, slot):
        return path_of(self.state, row, slot)

    def utterance(self, row):
        """Return memory (1, S, D) and length (1,) of an utterance, without padding."""
        return utterances(self.encoder_out, self.lengths)[row], self.lengths[[row]]

    def alive(self, row):
        return [slot for slot, token in enumerate(self.state.tokens[row]) if token is not None]

    def keep(self, slots):
        self.runtime.keep(self.state, slots)
        assert self.state.num_nodes == self.state.cache.num_nodes == max(map(len, slots))

    def select(self, rows):
        self.runtime.select(self.state, rows)
        self.encoder_out, self.lengths = self.encoder_out[rows], self.lengths[rows]


def random_nodes(rng, grown, sizes):
    """Return tokens and parents of new nodes, anywhere in the trees."""
    tokens, parents, first = [], [], grown.state.num_nodes
    for row, size in enumerate(sizes):
        nodes, chosen = grown.alive(row) or [ROOT], []
        for slot in range(first, first + size):
            chosen.append(rng.choice(nodes))
            nodes.append(slot)
        parents.append(chosen)
        tokens.append([rng.randrange(VOCAB_SIZE) for _ in range(size)])
    return tokens, parents


def some_subtrees(rng, grown):
    """Return the slots of one or two random paths of each utterance, as searches keep them."""
    kept = []
    for row, tree in enumerate(grown.state.trees):
        alive = grown.alive(row)
        tips = rng.sample(alive, min(2, len(alive)))
        kept.append(sorted({slot for tip in tips for slot in tree.path(tip)}))
    return kept


def grow_raggedly(rng, grown):
    """Check different numbers of new nodes for four utterances, of which three leave."""
    for sizes in ([1, 7, 3, 1], [7, 1, 1, 4], [2, 2, 2, 2]):
        grown.extend_and_check(*random_nodes(rng, grown, sizes))
        grown.keep(some_subtrees(rng, grown))
    grown.select([3, 0])
    grown.extend_and_check(*random_nodes(rng, grown, [1, 7]))
    grown.keep(some_subtrees(rng, grown))
    grown.select([1])
    grown.extend_and_check(*random_nodes(rng, grown, [5]))


def extend_chains(runtime, encoder_out, lengths, tokens):
    """Return the outputs of new trees, each of which is a chain of ``tokens`` (U, L)."""
    parents = chain_parents(tokens.size(1), ROOT, 0)
    return runtime.extend(
        runtime.start(encoder_out, lengths), tokens.tolist(), [parents] * len(tokens)
    )


def branched(runtime, encoder_out, lengths):
    """Extend the trees of two utterances twice; return the outputs of the second call.

    Its paths are 1 3 5, 1 3 5 1, 4 6, 4 6 7 and 4 6 8.
    """
    state = runtime.start(encoder_out, lengths)
    runtime.extend(state, [[1, 2, 3], [4]], [[ROOT, 0, 0], [ROOT]])
    return runtime.extend(state, [[5, 1], [6, 7, 8]], [[2, 3], [0, 3, 3]])


def halve(decoder):
    """Halve the weights, so that the errors of lower precisions stay small; return the decoder."""
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(0.5)
    return decoder


def relative_error(result, expected) -> float:
    return float((result.float() - expected).norm() / expected.norm())


def states_after(
    runtime, head_input, encoder_out, lengths, rows=None, vocabulary=None, precision=None
):
    """Return the proposer of a batch, and its states after (R, D) hidden states, without a search.

    The proposer has by default the decoder's dtype, so that its numbers can be compared. ``rows``
    are the utterances of the R states (by default all are the first's), ``vocabulary`` (V',) the
    tokens that may be drafted.
    """
    roots = [Prefix(0) for _ in encoder_out]
    cross = runtime.start(encoder_out, lengths).cross_keys_values
    context = DraftContext(roots, encoder_out.device, cross_keys_values=cross)
    precision = precision or str(runtime.dtype).removeprefix("torch.")
    prefixes = [roots[row].child(place) for place, row in enumerate(rows or [0] * len(head_input))]
    for place, prefix in enumerate(prefixes):
        first = place // 2  # several tensors, as after several calls
        prefix.head_input = head_input[first:], place - first
    begun = runtime.proposer(vocabulary, precision).begin(context)
    return begun, begun.start(prefixes)


def best_tokens_of_steps(proposer, states, depth, least=-math.inf):
    """Return the best token of each step (R, depth), and its margins (R, depth) to other results.

    It is ``MISSING`` where the chain's log-probability is below ``least``.
    """
    tokens, margins, chain = [], [], 0.0
    for step in range(depth):
        logits = proposer.logits(states).float()
        values, columns = logits.topk(2)
        chain = chain + logits.log_softmax(-1).amax(-1)
        best = proposer.token_ids(columns[:, 0])
        tokens.append(torch.where(chain < least, MISSING, best))
        margins.append((values[:, 0] - values[:, 1]).minimum((chain - least).abs()))
        if step + 1 < depth:
            states = proposer.advance(states, best)
    return torch.stack(tokens, 1), torch.stack(margins, 1)
