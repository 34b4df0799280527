"""Invariant 1, greedy part: exact drafts leave plain greedy text, whatever the shape."""

import random

import pytest
import torch
from tiny import EOS, VOCAB_SIZE, plain_greedy, random_memory, tiny_decoder

from espnet_medusa.accept import AcceptanceOptions, build_rule, exact
from espnet_medusa.search.greedy import GreedySearch

PROMPT = [3, 1]


def decode(decoder, memory, lengths, max_lengths, rule=exact, min_lengths=None, num_drafts=None):
    search = GreedySearch(decoder, rule, EOS, num_drafts)
    prompt = torch.tensor([PROMPT] * len(lengths))
    least = min_lengths or [0] * len(lengths)
    return search(memory, lengths, prompt, max_lengths, least)


def assert_plain(decoder, memory, lengths, found, max_lengths, min_lengths=None):
    for row, hypothesis in enumerate(found):
        alone = memory[row : row + 1, : lengths[row]]
        least = min_lengths[row] if min_lengths else 0
        tokens, score, ended = plain_greedy(
            decoder, alone, PROMPT, max_lengths[row], min_length=least
        )
        assert hypothesis.tokens == tokens
        assert hypothesis.ended == ended
        assert hypothesis.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("num_heads", [0, 1, 4, 10])
@pytest.mark.parametrize("heads", ["linear", "block"])
@pytest.mark.parametrize("seed", range(6))
def test_exact_equals_plain_greedy(seed, heads, num_heads):
    rng = random.Random(1000 * seed + num_heads)
    decoder = tiny_decoder(seed, heads, num_heads, heads_conf={"base_head": seed % 2 == 1})
    lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 5))]
    memory, lengths = random_memory(seed, lengths)
    max_lengths = [rng.choice([1, 2, 3, 7, 25, 60]) for _ in lengths]
    found = decode(decoder, memory, lengths, max_lengths)
    assert_plain(decoder, memory, lengths, found, max_lengths)


@pytest.mark.parametrize("seed", range(4))
def test_minimum_length_holds_inside_drafts(seed):
    decoder = tiny_decoder(seed, "linear", 4)
    memory, lengths = random_memory(seed, [6, 3, 9])
    max_lengths, min_lengths = [20, 30, 12], [5, 11, 12]
    found = decode(decoder, memory, lengths, max_lengths, min_lengths=min_lengths)
    assert_plain(decoder, memory, lengths, found, max_lengths, min_lengths)
    assert all(
        len(hypothesis.tokens) >= least
        for hypothesis, least in zip(found, min_lengths, strict=True)
    )


class PerfectDrafts(torch.nn.Module):
    """Heads that know the future: each position's logits are told by a script."""

    def __init__(self, script: list[int], num_heads: int):
        super().__init__()
        self.script, self.num_heads, self.block, self.base = script, num_heads, None, None


def oracle_decoder(seed: int, num_heads: int, memory: torch.Tensor, max_length: int):
    """A decoder whose heads always draft what greedy search will write, end symbol included."""
    decoder = tiny_decoder(seed, "none")
    tokens, _, ended = plain_greedy(decoder, memory, PROMPT, max_length)
    future = [*PROMPT, *tokens, *([EOS] * ended), *([0] * 20)]
    positions = {"start": 0}

    def head_logits(head_input):
        begin = positions["start"]
        logits = torch.zeros(num_heads, *head_input.shape[:-1], VOCAB_SIZE)
        for head in range(num_heads):
            logits[head, ..., future[begin + head]] = 1.0
        return logits

    decoder.heads = PerfectDrafts(future, num_heads)
    decoder.head_logits = head_logits
    return decoder, tokens, ended, positions


def ending_seed(max_length: int) -> int:
    """A seed whose greedy text ends by itself after some tokens."""
    for seed in range(200):
        decoder = tiny_decoder(seed, "none")
        memory, _ = random_memory(seed, [5])
        tokens, _, ended = plain_greedy(decoder, memory, PROMPT, max_length)
        if ended and 4 <= len(tokens) <= max_length - 3:
            return seed
    raise AssertionError("no seed ends by itself")


@pytest.mark.parametrize("num_heads", [1, 4, 10])
def test_end_symbol_inside_a_draft(num_heads):
    seed = ending_seed(30)
    memory, lengths = random_memory(seed, [5])
    decoder, tokens, ended, positions = oracle_decoder(seed, num_heads, memory, 30)
    search = GreedySearch(decoder, exact, EOS)
    original = search._draft

    def draft(rows, *rest):
        # Behind the text so far comes the known token, then what the heads draft.
        positions["start"] = len(PROMPT) + len(rows[0].hypothesis.tokens)
        return original(rows, *rest)

    search._draft = draft
    found = search(memory, lengths, torch.tensor([PROMPT]), [30], [0])[0]
    assert ended and found.ended
    assert found.tokens == tokens
    # The first call has no drafts yet; then each writes num_heads + 1 tokens while they last.
    expected = 1 + -(-len(tokens) // (num_heads + 1))
    assert found.statistics.decoder_calls == expected


@pytest.mark.parametrize("max_length", [1, 2, 5, 9])
def test_maximum_length_inside_a_draft(max_length):
    decoder = tiny_decoder(2, "block", 10)
    memory, lengths = random_memory(2, [7])
    found = decode(decoder, memory, lengths, [max_length], rule=lambda logits, drafts: drafts >= 0)
    # Everything drafted is allowed: only the length limit can stop it.
    assert len(found[0].tokens) == max_length or found[0].ended
    assert len(found[0].tokens) <= max_length


def test_positions_run_out_before_the_maximum_length():
    decoder = tiny_decoder(5, "linear", 10, max_target_positions=16)
    memory, lengths = random_memory(5, [6, 6])
    found = decode(decoder, memory, lengths, [100, 100])
    room = 16 - len(PROMPT) + 1
    assert_plain(decoder, memory, lengths, found, [room, room])


def test_one_frame_of_memory():
    decoder = tiny_decoder(7, "block", 4)
    memory, lengths = random_memory(7, [1])
    assert_plain(decoder, memory, lengths, decode(decoder, memory, lengths, [20]), [20])


def test_batch_equals_singles():
    decoder = tiny_decoder(11, "block", 4)
    memory, lengths = random_memory(11, [9, 2, 5, 7])
    max_lengths = [40, 10, 25, 3]
    batch = decode(decoder, memory, lengths, max_lengths)
    for row, together in enumerate(batch):
        size = int(lengths[row])
        alone = decode(
            decoder, memory[row : row + 1, :size], lengths[row : row + 1], [max_lengths[row]]
        )[0]
        assert alone.tokens == together.tokens
        assert alone.score == pytest.approx(together.score, abs=1e-4)
        assert alone.statistics.decoder_calls == together.statistics.decoder_calls
        assert alone.statistics.accepted == together.statistics.accepted


def reference_typical(decoder, memory, max_length, num_heads, epsilon, alpha):
    """One token at a time: draft with the heads, look at each token's probability alone."""
    written, lengths = [], torch.tensor([memory.size(1)])
    with torch.no_grad():
        drafts = []
        while len(written) < max_length:
            outputs = decoder.hidden_states(memory, lengths, torch.tensor([[*PROMPT, *written]]))
            logits = decoder.logits(outputs.hidden[0, -1])
            probs = logits.softmax(-1)
            entropy = -(probs * (probs + 1e-5).log()).sum()
            bound = min(epsilon, alpha * float((-entropy).exp()))
            if drafts and float(probs[drafts[0]]) > bound:
                token, drafts = drafts[0], drafts[1:]
            else:
                token = int(logits.argmax())
                heads = decoder.head_logits(outputs.head_input[0, -1])
                # The last place belongs to the base head: a draft there would save no call.
                left = max(max_length - len(written) - 2, 0)
                drafts = heads.argmax(-1)[: min(num_heads, left)].tolist()
            if token == EOS:
                return written
            written.append(token)
    return written


@pytest.mark.parametrize("heads", ["linear", "block"])
@pytest.mark.parametrize("seed", range(6))
def test_typical_equals_one_token_at_a_time(seed, heads):
    epsilon, alpha = 0.2, 0.6
    decoder = tiny_decoder(seed, heads, 4)
    memory, lengths = random_memory(seed, [6])
    options = AcceptanceOptions("typical", typical_epsilon=epsilon, typical_alpha=alpha)
    found = decode(decoder, memory, lengths, [40], rule=build_rule(options))[0]
    assert found.tokens == reference_typical(decoder, memory, 40, 4, epsilon, alpha)


def test_every_written_token_was_allowed_by_the_base_head():
    """Invariant 4: with a rule that refuses everything only base tokens are written."""
    decoder = tiny_decoder(3, "linear", 4)
    memory, lengths = random_memory(3, [6, 4])
    found = decode(
        decoder, memory, lengths, [30, 30], rule=lambda logits, drafts: torch.zeros_like(drafts) > 0
    )
    assert_plain(decoder, memory, lengths, found, [30, 30])
    assert all(sum(hypothesis.statistics.accepted) == 0 for hypothesis in found)


def test_statistics_count_what_happened():
    decoder = tiny_decoder(0, "linear", 4)
    memory, lengths = random_memory(0, [6])
    found = decode(decoder, memory, lengths, [30])[0]
    counts = found.statistics
    assert counts.tokens == len(found.tokens) + found.ended
    # Each call writes its accepted drafts and one base token; the end may cut some of them.
    assert counts.decoder_calls <= counts.tokens <= counts.decoder_calls + sum(counts.accepted)
    assert counts.nodes == len(PROMPT) + (counts.decoder_calls - 1) + sum(counts.drafted)
    plain = decode(decoder, memory, lengths, [30], num_drafts=0)[0].statistics
    assert plain.decoder_calls == plain.tokens
    assert plain.nodes == plain.tokens + len(PROMPT) - 1


def test_more_drafts_than_heads_are_refused():
    with pytest.raises(ValueError, match="num_drafts: 5; allowed: 0 to 4"):
        GreedySearch(tiny_decoder(0, "linear", 4), exact, EOS, num_drafts=5)
