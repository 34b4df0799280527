"""A draft model's tree follows the search; each prefix goes through the draft model once."""

import random

import pytest
import torch
from beam_oracle import make_scorers, make_weights
from draft_models import DRAFT_MODELS, drafted, drafted_by, nearly
from tiny import EOS, VOCAB_SIZE, bounds, plain_greedy, random_memory, tiny_decoder

from espnet_medusa.draft.model import DraftModelProposer
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.runtime.cuda_graph import CudaGraphWhisperRuntime
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.search.acceptance import build_rule
from espnet_medusa.search.ahead.lookahead import DraftShape
from espnet_medusa.search.beam import beam_search
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.greedy import greedy_search
from espnet_medusa.search.options import LengthLimits, SearchOptions
from espnet_medusa.search.scores import Scorers
from espnet_medusa.search.threshold_beam import threshold_beam_search
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftContext, DraftInput

PROMPT = [3, 1]


def build_greedy(decoder, shape, acceptance="exact", **options):
    rule = build_rule(SearchOptions(acceptance=acceptance, **options))
    return greedy_search(decoder, rule, Constraints(EOS), decoder.proposer(), shape)


def build_beam(decoder, shape, beam_size, seed=0, weights=None):
    scorers, ctc = make_scorers(seed)
    weights = weights or make_weights()
    constraints = Constraints(EOS)
    return beam_search(
        decoder, Scorers(weights, scorers, ctc.log_softmax), beam_size, constraints,
        decoder.proposer(), shape,
    )  # fmt: skip


def prompts(count):
    return torch.tensor([PROMPT] * count)


class Watched:
    """Notes the paths that a decoder evaluates, by utterance.

    Args:
        decoder: Its ``start``, ``extend``, ``keep`` and ``select`` are watched.

    Attributes:
        paths: Of each search and each of its utterances, what was evaluated, in order.
        calls: In all.
    """

    def __init__(self, decoder):
        self.decoder, self.paths, self.calls = decoder, [], 0
        self.start, self.extend = decoder.start, decoder.extend
        self.keep, self.select = decoder.keep, decoder.select
        for name in ("start", "extend", "keep", "select"):
            setattr(decoder, name, getattr(self, f"_{name}"))

    def _start(self, memory, lengths, with_heads=True):
        assert not with_heads, "a draft model's own heads have nothing to do"
        self.rows = [[] for _ in lengths]  # evaluated paths, by utterance
        self.slots = [[] for _ in lengths]
        self.paths.append(self.rows)
        return self.start(memory, lengths, with_heads)

    def _extend(self, state, tokens, parents):
        self.calls += 1
        first = state.num_nodes
        outputs = self.extend(state, tokens, parents)
        for row, (ids, above) in enumerate(zip(tokens, parents, strict=True)):
            slots = self.slots[row]
            assert len(slots) == first
            for token, parent in zip(ids, above, strict=True):
                slots.append((*(slots[parent] if parent >= 0 else ()), token))
                self.rows[row].append(slots[-1])
            slots += [None] * (state.num_nodes - len(slots))
        return outputs

    def _keep(self, state, kept):
        self.keep(state, kept)
        self.slots = [
            [slots[slot] for slot in row] + [None] * (state.num_nodes - len(row))
            for slots, row in zip(self.slots, kept, strict=True)
        ]

    def _select(self, state, utterances):
        self.select(state, utterances)
        self.slots = [self.slots[row] for row in utterances]
        self.rows = [self.rows[row] for row in utterances]


def draft_decoder(decoder):
    return decoder.proposer().decoder


def test_logits_are_the_draft_models_own_behind_every_path():
    draft = tiny_decoder(5, "none")
    memory, lengths = random_memory(5, [7, 4])
    inputs = [DraftInput(memory[0], [3, 1]), DraftInput(memory[1, :4], [2, 6, 0])]
    roots = [Prefix(1), Prefix(1)]  # the main model's prompt may be another
    context = DraftContext(roots, memory.device, inputs)
    proposer = DraftModelProposer(build_runtime(draft), EOS).begin(context)
    known = [roots[0].child(4), roots[1], roots[0]]
    states = proposer.start(known)
    states = proposer.advance(states, torch.tensor([7, 8, 9]))
    paths = [(0, [3, 1, 4, 7]), (1, [2, 6, 0, 8]), (0, [3, 1, 9])]
    for _ in range(3):
        with torch.no_grad():
            found = proposer.logits(states)
            for logits, (row, path) in zip(found, paths, strict=True):
                expected = draft(
                    memory[row : row + 1, : lengths[row]], lengths[row : row + 1],
                    torch.tensor([path]), torch.tensor([len(path)]),
                )[0][0, -1]  # fmt: skip
                torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        # On: some rows twice, in another order, then one token more.
        states = proposer.advance(states.select(torch.tensor([2, 0, 1])), torch.tensor([5, 0, 2]))
        paths = [
            (row, [*path, token])
            for (row, path), token in zip([paths[2], paths[0], paths[1]], [5, 0, 2], strict=True)
        ]
    assert proposer.cost(roots[0]).calls == proposer.cost(roots[1]).calls == 3
    assert proposer.cost(roots[1]).nodes == 3 + 3


@pytest.mark.parametrize("depth", [1, 3, 10])
@pytest.mark.parametrize("seed", range(3))
def test_the_main_model_itself_gets_all_its_drafts_accepted(seed, depth):
    module = tiny_decoder(seed, "none")
    decoder = drafted_by(module, module)
    memory, lengths = random_memory(seed, [6, 9, 4])
    search_states = build_greedy(decoder, DraftShape(depth))(
        memory, lengths, prompts(3), bounds([30, 23, 40])
    )
    for row, search_state in enumerate(search_states):
        counts = search_state.statistics
        alone = memory[row : row + 1, : lengths[row]]
        tokens, _, ended = plain_greedy(module, alone, PROMPT, [30, 23, 40][row])
        assert search_state.tokens == tokens
        # The prompt's call writes one token, each other depth + 1 as long as there are so many.
        assert counts.decoder_calls == -(-(len(tokens) + ended) // (depth + 1))
        assert counts.tokens - counts.decoder_calls == sum(counts.accepted)


@torch.no_grad()
def test_the_main_model_itself_drafts_the_whole_beam():
    module = tiny_decoder(2, "none")
    memory, lengths = random_memory(2, [16, 11])
    decoder = drafted_by(module, module)
    weights = make_weights(ctc=0.3)
    search = build_beam(decoder, DraftShape(6, 5), 5, 2, weights)
    for search_state in search(memory, lengths, torch.tensor([[EOS]] * 2)):
        assert search_state.statistics.decoder_calls == -(-search_state.steps // 7)


def searches(decoder, seed):
    """Every kind of search, and how to run it on three utterances."""
    memory, lengths = random_memory(seed, [14, 9, 11])
    limits = bounds([30, 4, 17])
    for shape in (DraftShape(4), DraftShape(3, 3, 7), DraftShape(3, choices=(2, 2, 1))):
        search = build_greedy(decoder, shape, "top_m")
        yield lambda search=search: search(memory, lengths, prompts(3), limits)
    weights = make_weights(ctc=0.3, lm=0.3)
    for search in (
        build_beam(decoder, DraftShape(4, 3), 3, seed),
        build_beam(decoder, DraftShape(4, 6, 15), 3, seed, weights),
        threshold_beam_search(decoder, Constraints(EOS), decoder.proposer(), 0.2, 3, 4),
    ):
        yield lambda search=search: search(memory, lengths, prompts(3), LengthLimits(-14))


@pytest.mark.parametrize("kind", DRAFT_MODELS)
@pytest.mark.parametrize("seed", range(2))
@torch.no_grad()
def test_no_prefix_is_evaluated_twice(seed, kind):
    _, decoder = drafted(seed, kind)
    watched = Watched(draft_decoder(decoder))
    for search in searches(decoder, seed):
        search_states = search()
        rows = watched.paths[-1]
        for search_state, paths in zip(search_states, rows, strict=True):
            assert len(paths) == len(set(paths)), "no prefix twice"
            assert all(len(path) < 3 or path[:-1] in paths for path in paths)
            assert search_state.statistics.draft_nodes == len(paths)
            assert search_state.statistics.draft_calls <= watched.calls
            assert search_state.statistics.draft_seconds < search_state.statistics.decoder_seconds
        drafted_for = [
            search_state for search_state in search_states if search_state.statistics.draft_calls
        ]
        assert drafted_for and all(
            search_state.statistics.draft_seconds > 0 for search_state in drafted_for
        )


@torch.no_grad()
def test_a_chain_costs_a_call_a_step_and_its_tree_stays_small():
    module, decoder = drafted(3, "near", max_target_positions=64)
    draft, sizes = draft_decoder(decoder), []
    watched, extend = Watched(draft), draft.extend
    draft.extend = lambda state, *new: (extend(state, *new), sizes.append(state.num_nodes))[0]
    memory, lengths = random_memory(3, [12])
    [search_state] = build_greedy(decoder, DraftShape(4))(
        memory, lengths, prompts(1), bounds([50], [50])
    )
    counts = search_state.statistics
    assert len(search_state.tokens) == 50
    # Behind the prompt's call; a step less where only the base head's token is left.
    assert watched.calls == counts.draft_calls <= 4 * counts.decoder_calls
    assert counts.draft_calls == sum(counts.drafted)
    # The prompt, what was written, the last draft: nothing of earlier ones.
    assert max(sizes) <= len(PROMPT) + 50 + 4
    # All that was written but the tokens behind the last draft, and what did not stand.
    assert counts.draft_nodes <= len(PROMPT) + 50 + sum(counts.drafted) - sum(counts.accepted)


def test_batch_equals_singles_in_what_drafts_cost():
    _, decoder = drafted(4, "near")
    memory, lengths = random_memory(4, [9, 2, 5, 7])
    most = [40, 10, 25, 3]
    search = build_greedy(decoder, DraftShape(3))
    together = search(memory, lengths, prompts(4), bounds(most))
    for row, search_state in enumerate(together):
        size = lengths[row : row + 1]
        [alone] = search(
            memory[row : row + 1, :size], size, prompts(1), bounds(most[row : row + 1])
        )
        assert alone.tokens == search_state.tokens
        assert alone.statistics.decoder_calls == search_state.statistics.decoder_calls
        assert alone.statistics.accepted == search_state.statistics.accepted


def test_a_draft_model_reads_its_own_memory_and_prompt():
    """It drafts from these what it would write by itself."""
    module = tiny_decoder(1, "none")
    draft = nearly(tiny_decoder(1, "none"), 1)
    memory, lengths = random_memory(1, [8, 5])
    other, _ = random_memory(77, [6, 6])
    inputs = [DraftInput(other[0], [5, 2, 0]), DraftInput(other[1, :3], [5, 4, 0])]
    decoder = drafted_by(module, draft)
    watched = Watched(draft_decoder(decoder))
    search = build_greedy(decoder, DraftShape(4))
    search_states = search(memory, lengths, prompts(2), bounds([20, 20]), inputs)
    for row, search_state in enumerate(search_states):
        alone = memory[row : row + 1, : lengths[row]]
        assert search_state.tokens == plain_greedy(module, alone, PROMPT, 20)[0]
        prompt = tuple(inputs[row].prompt)
        paths = watched.paths[0][row]
        assert paths[:3] == [prompt[:1], prompt[:2], prompt]
        assert all(path[:3] == prompt for path in paths[3:])
        # The first draft is what the draft model writes behind the first token.
        token, drafts = search_state.tokens[0], []
        for _ in range(4):
            path = torch.tensor([[*prompt, token, *drafts]])
            size, frames = torch.tensor([path.size(1)]), torch.tensor([len(inputs[row].memory)])
            with torch.no_grad():
                logits = draft(inputs[row].memory[None], frames, path, size)[0][0, -1]
            drafts.append(int(logits.argmax()))
        drafts = drafts[: drafts.index(EOS)] if EOS in drafts else drafts
        assert (*prompt, token, *drafts[:3]) in paths


def test_a_draft_model_with_fewer_positions():
    module = tiny_decoder(6, "none")
    memory, lengths = random_memory(6, [6, 4])
    decoder = drafted_by(module, tiny_decoder(6, "none", max_target_positions=9))
    watched = Watched(draft_decoder(decoder))
    search_states = build_greedy(decoder, DraftShape(5))(
        memory, lengths, prompts(2), bounds([40, 3], [40, 0])
    )
    expected = plain_greedy(module, memory[:1, :6], PROMPT, 40, min_length=40)[0]
    assert search_states[0].tokens == expected and len(expected) == 40
    assert max(len(path) for path in watched.paths[0][0]) == 9


@torch.no_grad()
def test_nothing_is_asked_behind_the_end():
    for seed in range(3):
        _, decoder = drafted(seed, "near")
        watched = Watched(draft_decoder(decoder))
        rng = random.Random(seed)
        memory, lengths = random_memory(seed, [12, 7])
        shape = DraftShape(5, rng.choice([1, 4]))
        build_greedy(decoder, shape)(memory, lengths, prompts(2), bounds([25, 30]))
        paths = [path for rows in watched.paths for row in rows for path in row]
        assert paths and not any(EOS in path[len(PROMPT) :] for path in paths)


@pytest.mark.parametrize("runtime", ["captured", "bfloat16", "int8"])
def test_a_draft_model_computes_as_it_likes(runtime):
    """Utterances are short of nodes at times: the end was drafted, or no room is left."""
    module = tiny_decoder(3, "none")
    draft = nearly(module, 3)
    if runtime == "captured":
        decoder = CudaGraphWhisperRuntime(draft, Precision(torch.float32))
    else:
        decoder = build_runtime(draft, runtime)
    main = build_runtime(module)
    memory, lengths = random_memory(3, [12, 7, 9])
    most, counts = [30, 6, 45], []
    for drafts in (build_runtime(draft), decoder):
        proposer = DraftModelProposer(drafts, EOS)
        shape = DraftShape(6, 2)
        search = greedy_search(main, build_rule(SearchOptions()), Constraints(EOS), proposer, shape)
        search_states = search(memory, lengths, prompts(3), bounds(most, [30, 0, 45]))
        for row, search_state in enumerate(search_states):
            alone, least = memory[row : row + 1, : lengths[row]], [30, 0, 45][row]
            assert (
                search_state.tokens
                == plain_greedy(module, alone, PROMPT, most[row], min_length=least)[0]
            )
        counts.append([(w.statistics.draft_calls, w.statistics.draft_nodes) for w in search_states])
    calls, nodes = (sum(column) for column in zip(*counts[0], strict=True))
    assert nodes > calls > 20
    if runtime == "captured":
        assert counts[0] == counts[1]


@pytest.mark.parametrize("seed", range(4))
def test_rules_allow_what_they_allow_and_threshold_asks_nobody(seed):
    """With itself as the draft model, whatever the rule, the text is greedy's."""
    module = tiny_decoder(seed, "none")
    decoder = drafted_by(module, module)
    memory, lengths = random_memory(seed, [9])
    expected = plain_greedy(module, memory, PROMPT, 30)[0]
    options = {"typical": {}, "top_m": {"top_m": 2}, "threshold": {"threshold": 1 / VOCAB_SIZE}}
    for name, own in options.items():
        [search_state] = build_greedy(decoder, DraftShape(3), name, **own)(
            memory, lengths, prompts(1), bounds([30])
        )
        assert search_state.tokens == expected
