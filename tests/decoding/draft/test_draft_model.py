"""A draft model's tree follows the search; the draft model evaluates each prefix once."""

import searches
import torch
from beam_oracle import make_weights
from cases import cases, combinations, pairs
from scripted import TokenTracker, foresight, new_places, path_from, path_of
from searches import (
    DRAFT_MODELS,
    PROMPT,
    assert_same_alone,
    decode,
    decode_exactly,
    our_search,
    with_draft,
)
from tiny import EOS, VOCAB_SIZE, random_encoder_out, tiny_decoder, utterances

from espnet_medusa.decoding.draft.draft_tree import DraftTree
from espnet_medusa.decoding.draft.model import DraftModelProposer
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.cuda_graph import CudaGraphWhisperRuntime
from espnet_medusa.decoding.runtime.precision import Precision
from espnet_medusa.decoding.search.acceptance import build_rule
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions
from espnet_medusa.decoding.search.threshold_beam import threshold_beam_search
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import DraftContext, DraftInput


class Recorder(TokenTracker):
    """A draft model's decoder that records evaluated paths and the sizes of trees.

    ``paths`` are in order, by search and utterance; ``sizes`` count nodes after each call.
    """

    def __init__(self, decoder):
        proposer = decoder.proposer()
        super().__init__(proposer.decoder)
        proposer.decoder = self
        self.paths, self.sizes = [], []

    def start(self, encoder_out, lengths, with_heads=True):
        assert not with_heads, "heads of a draft model are not used"
        state = super().start(encoder_out, lengths, with_heads)
        state.evaluated = [[] for _ in lengths]
        self.paths.append([*state.evaluated])
        return state

    def extend(self, state, tokens, parents):
        places = new_places(tokens, state.num_nodes)
        outputs = super().extend(state, tokens, parents)
        self.sizes.append(state.num_nodes)
        for row, slot in places:
            state.evaluated[row].append(tuple(path_of(state, row, slot)))
        return outputs

    def select(self, state, utterances):
        super().select(state, utterances)
        state.evaluated = [state.evaluated[row] for row in utterances]


def test_logits_equal_the_trained_draft_models():
    draft = tiny_decoder(5, "none")
    encoder_out, lengths = random_encoder_out(5, [7, 4])
    inputs = [DraftInput(encoder_out[0], [3, 1]), DraftInput(encoder_out[1, :4], [2, 6, 0])]
    roots = [Prefix(1), Prefix(1)]  # the main model's prompt may differ
    context = DraftContext(roots, encoder_out.device, inputs)
    proposer = DraftModelProposer(build_runtime(draft), EOS).begin(context)
    states = proposer.start([roots[0].child(4), roots[1], roots[0]])
    states = proposer.advance(states, torch.tensor([7, 8, 9]))
    paths = [(0, [3, 1, 4, 7]), (1, [2, 6, 0, 8]), (0, [3, 1, 9])]
    for _ in range(3):
        for logits, (row, path) in zip(proposer.logits(states), paths, strict=True):
            expected = foresight(draft, utterances(encoder_out, lengths)[row])(tuple(path))
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        # Reorder the rows, then add one token to each.
        order, tokens = [2, 0, 1], [5, 0, 2]
        states = proposer.advance(states.select(torch.tensor(order)), torch.tensor(tokens))
        reordered = zip([paths[place] for place in order], tokens, strict=True)
        paths = [(row, [*path, token]) for (row, path), token in reordered]
    assert proposer.cost(roots[0]).calls == proposer.cost(roots[1]).calls == 3
    assert proposer.cost(roots[1]).nodes == 3 + 3


@combinations(kept=[False, True], graph=[False, True])
def test_prompts_that_follow_calls_for_another_utterance(kept, graph):
    draft = tiny_decoder(5, "none")
    runtime = build_runtime(draft)
    if graph:
        runtime = CudaGraphWhisperRuntime(draft, Precision(torch.float32))
    encoder_out, lengths = random_encoder_out(5, [7, 4])
    prompts = [[3, 1, 4, 1, 5], [2, 6]]
    inputs = [DraftInput(encoder_out[0], prompts[0]), DraftInput(encoder_out[1, :4], prompts[1])]
    tree = DraftTree(runtime, inputs)
    late, early = tree.roots
    for root, tokens in ((early, []), (late, []), (early, [8]), (late, [7]), (late, [7, 9])):
        [logits] = tree.logits([path_from(root, tokens)])
        row = tree.roots.index(root)
        expected = foresight(draft, utterances(encoder_out, lengths)[row])((*prompts[row], *tokens))
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        if kept:
            tree.keep(tree.roots)
    assert [*map(tuple, tree.costs.values())] == [(3, 7), (2, 3)]


RULES = [{"acceptance": "typical", "typical_epsilon": 0.2}, {"acceptance": "top_m", "top_m": 2}]


@pairs(kind=DRAFT_MODELS, options=RULES, seed=range(2))
def test_minimum_lengths_of_a_batch_do_not_change_drafts(kind, options, seed):
    """Utterances below their minimum length draft separately, so their prompts follow later."""
    _, decoder = searches.drafted_by(seed, kind)
    rule, least = build_rule(SearchOptions(**options)), [1, 0, 3, 0]

    def search(rows, *audio):
        limits = [16] * len(rows), rule, [least[row] for row in rows]
        return decode(decoder, *audio, *limits, DraftShape(4), prompt=[3, 1, 4])

    assert_same_alone(search, *random_encoder_out(seed, [9, 4, 7, 11]))


@combinations(depth=[1, 3, 10], seed=range(3))
def test_all_drafts_of_the_main_model_itself_are_accepted(seed, depth):
    module, audio = tiny_decoder(seed, "none"), random_encoder_out(seed, [6, 9, 4])
    options = {"decoder": with_draft(module, module), "shape": DraftShape(depth)}
    for state in decode_exactly(module, *audio, [30, 23, 40], **options):
        # The prompt's call gives one token, each other call depth + 1 if so many are left.
        assert state.statistics.decoder_calls == -(-state.statistics.tokens // (depth + 1))


def test_all_beam_drafts_of_the_main_model_itself_are_accepted():
    module = tiny_decoder(2, "none")
    search = our_search(with_draft(module, module), 2, make_weights(ctc=0.3), 5, DraftShape(6, 5))
    for state in search(*random_encoder_out(2, [16, 11]), torch.tensor([[EOS]] * 2)):
        assert state.statistics.decoder_calls == -(-state.steps // 7)


def all_searches(decoder, seed):
    prompts, (encoder_out, lengths) = (
        torch.tensor([PROMPT] * 3),
        random_encoder_out(seed, [9, 6, 11]),
    )
    rule = build_rule(SearchOptions(acceptance="top_m"))
    for shape in (DraftShape(4), DraftShape(3, 3, 7), DraftShape(3, choices=(2, 2, 1))):
        yield lambda shape=shape: decode(
            decoder, encoder_out, lengths, [18, 4, 11], rule, shape=shape
        )
    for search in (
        our_search(decoder, seed, make_weights(), 3, DraftShape(4, 3)),
        our_search(decoder, seed, make_weights(ctc=0.3, lm=0.3), 3, DraftShape(4, 6, 15)),
        threshold_beam_search(decoder, Constraints(EOS), decoder.proposer(), 0.2, 3, 4),
    ):
        yield lambda search=search: search(encoder_out, lengths, prompts, LengthLimits(-10))


@combinations(kind=DRAFT_MODELS, seed=range(2))
def test_no_prefix_is_evaluated_twice(seed, kind):
    _, decoder = searches.drafted_by(seed, kind)
    recorder = Recorder(decoder)
    for search in all_searches(decoder, seed):
        states = search()
        for state, paths in zip(states, recorder.paths[-1], strict=True):
            counts = state.statistics
            assert len(paths) == len(set(paths))
            assert all(len(path) < 3 or path[:-1] in paths for path in paths)
            assert not any(EOS in path for path in paths), "nothing follows the end token"
            assert counts.draft_nodes == len(paths)
            assert counts.draft_calls <= len(recorder.sizes)
            assert counts.draft_seconds < counts.decoder_seconds
        seconds = [s.statistics.draft_seconds for s in states if s.statistics.draft_calls]
        assert seconds and min(seconds) > 0


@combinations(kind=["near", "other"])
def test_a_chain_costs_one_call_per_step_and_its_tree_stays_small(kind):
    _, decoder = searches.drafted_by(3, kind, max_target_positions=64)
    recorder = Recorder(decoder)
    [state] = decode(
        decoder, *random_encoder_out(3, [12]), [50], min_lengths=[50], shape=DraftShape(4)
    )
    counts = state.statistics
    assert len(state.tokens) == 50
    # None in the prompt's call; one step less if only the base head's token is left.
    assert len(recorder.sizes) == counts.draft_calls <= 4 * counts.decoder_calls
    assert counts.draft_calls == sum(counts.drafted)
    # Prompt, text and the last draft, but no earlier drafts.
    assert max(recorder.sizes) <= len(PROMPT) + 50 + 4
    # All accepted tokens except those after the last draft, and all rejected ones.
    assert counts.draft_nodes <= len(PROMPT) + 50 + sum(counts.drafted) - sum(counts.accepted)


@combinations(kind=DRAFT_MODELS, seed=range(3))
def test_rows_of_a_batch_that_do_not_draft_cost_nothing(seed, kind):
    """Threshold beam search drafts for all rows while one of them accepts drafts."""
    _, decoder = searches.drafted_by(seed, kind)
    limits = [LengthLimits(-most) for most in (2, 16, 5, 9)]

    def search(rows, *audio):
        parts = Constraints(EOS), decoder.proposer(), 0.2, 3, 4
        some = [limits[row] for row in rows]
        prompts = torch.tensor([PROMPT] * len(rows))
        return threshold_beam_search(decoder, *parts)(*audio, prompts, some)

    assert_same_alone(search, *random_encoder_out(seed, [9, 11, 6, 14]))


def test_a_draft_model_with_fewer_positions():
    module = tiny_decoder(6, "none")
    encoder_out, lengths = random_encoder_out(6, [6, 4])
    decoder = with_draft(module, tiny_decoder(6, "none", max_target_positions=9))
    recorder = Recorder(decoder)
    given = module, encoder_out, lengths, [40, 3], [40, 0], decoder
    states = decode_exactly(*given, shape=DraftShape(5))
    assert len(states[0].tokens) == 40
    assert max(len(path) for path in recorder.paths[0][0]) == 9


@combinations(runtime=["cuda graph", "bfloat16", "int8"])
def test_runtimes_of_a_draft_model(runtime):
    """Utterances have different numbers of drafts because of end tokens and length limits."""
    module = tiny_decoder(3, "none")
    draft = searches.nearly(module, 3)
    if runtime == "cuda graph":
        decoder = CudaGraphWhisperRuntime(draft, Precision(torch.float32))
    else:
        decoder = build_runtime(draft, runtime)
    encoder_out, lengths = random_encoder_out(3, [12, 7, 9])
    most, least, counts = [30, 6, 45], [30, 0, 45], []
    for drafter in (build_runtime(draft), decoder):
        drafts = {"proposer": DraftModelProposer(drafter, EOS), "shape": DraftShape(6, 2)}
        states = decode_exactly(module, encoder_out, lengths, most, least, **drafts)
        counts.append([(s.statistics.draft_calls, s.statistics.draft_nodes) for s in states])
    calls, nodes = (sum(column) for column in zip(*counts[0], strict=True))
    assert nodes > calls > 20
    if runtime == "cuda graph":
        assert counts[0] == counts[1]


@cases(("typical", {}), ("top_m", {"top_m": 2}), ("threshold", {"threshold": 1 / VOCAB_SIZE}))
@combinations(seed=range(4))
def test_greedy_text_with_other_acceptance_rules(acceptance, option, seed):
    """The rules allow other texts, but the main model itself drafts the greedy one."""
    module, audio = tiny_decoder(seed, "none"), random_encoder_out(seed, [9])
    rule = build_rule(SearchOptions(acceptance=acceptance, **option))
    options = {"decoder": with_draft(module, module), "rule": rule, "shape": DraftShape(3)}
    decode_exactly(module, *audio, [30], **options)
