"""Options: refused values, and a model's draft defaults."""

import math

from cases import cases, combinations
from refusals import refuses

from espnet_medusa.decoding.search.search_options import (
    SearchOptions,
    check_options,
    with_draft_defaults,
)

CONF = {"greedy": {"draft_depth": 3, "draft_vocab_size": 900}, "beam": {"draft_depth": 0}}
PROBABLE = {"greedy": {"draft_min_probability": 0.3}}


@cases(
    ("greedy", {}, (3, 900)),
    ("greedy", {"drafter": "heads", "acceptance": "typical"}, (3, 900)),
    ("greedy", {"draft_depth": 0}, (0, 900)),
    ("greedy", {"draft_vocab_size": 50}, (3, 50)),
    ("beam", {}, (None, None)),  # it begins without drafts
    ("beam", {"lookahead": "fixed"}, (0, None)),
    ("beam", {"draft_depth": 7}, (7, None)),
    # Defaults are for verified heads only.
    ("greedy", {"drafter": "ctc"}, (None, None)),
    ("greedy", {"acceptance": "threshold"}, (None, None)),
    ("greedy", {"medusa_choices": [1, 2]}, (None, None)),
)
def test_given_options_win_over_defaults(search, given, expected):
    options = with_draft_defaults(SearchOptions(search=search, **given), CONF)
    assert (options.draft_depth, options.draft_vocab_size) == expected


@cases(
    ({}, 0.3),
    ({"draft_min_probability": 0.0}, 0.0),
    ({"drafter": "model"}, None),
    ({"draft_depth": 4}, None),
    ({"draft_depth": 4, "draft_min_probability": 0.1}, 0.1),
)
def test_default_minimum_probability_of_heads(given, expected):
    options = with_draft_defaults(SearchOptions(search="greedy", **given), PROBABLE)
    assert options.draft_min_probability == expected


@cases(
    ("en", {}, None, 3),
    (None, {}, None, 3),
    ("de", {}, "text", None),  # only a given text drafts
    ("de", {"draft_depth": 2}, None, 2),
)
def test_heads_do_not_draft_in_other_languages_by_default(language, given, drafter, depth):
    conf = {"greedy": {**CONF["greedy"], "languages": ["en"]}}
    options = with_draft_defaults(SearchOptions(search="greedy", **given), conf, language)
    assert (options.drafter, options.draft_depth) == (drafter, depth)


@combinations(conf=[None, {}, {"beam": {"draft_width": 2}}])
def test_options_without_defaults_are_unchanged(conf):
    options = SearchOptions(search="greedy")
    assert with_draft_defaults(options, conf) == options


@refuses(
    ({"greedily": {}}, r"draft_conf: 'greedily' is not known \(did you mean 'greedy'\?\)"),
    ({"greedy": {"depth": 3}}, "draft_conf.greedy: unknown option 'depth'"),
    ({"greedy": {"draft_depth": -1}}, "draft_conf.greedy.draft_depth: -1 is too small"),
    ({"greedy": {"draft_vocab_size": True}}, "draft_vocab_size: True; allowed: a whole"),
    ({"greedy": {"languages": "en"}}, "draft_conf.greedy"),
    ({"greedy": {"draft_min_probability": 1.0}}, "greedy.draft_min_probability: 1.0; allowed: fr"),
    ({"beam": {"draft_min_probability": 0.3}}, "beam.draft_min_probability: 0.3; .* greedy"),
    ({"greedy": 3}, "draft_conf.greedy: allowed: names of options with values"),
    ([3], "draft_conf: allowed: options by search"),
)
def test_bad_defaults_are_refused(conf):
    with_draft_defaults(SearchOptions(search="greedy"), conf)


@refuses(
    ({"acceptance": "exakt"}, "'exakt'.*did you mean 'exact'.*exact, typical, top_m, thresh"),
    ({"draft_min_probability": -0.1}, "draft_min_probability: -0.1; allowed"),
    ({"draft_min_probability": math.nan}, "draft_min_probability: nan"),
    ({"search": "beam", "draft_min_probability": 0.3}, "0.3; .*with search: greedy"),
    ({"typical_alpha": 0.0}, "typical_alpha: 0.0; allowed: above 0"),
    ({"typical_alpha": math.nan}, "typical_alpha: nan; allowed: above 0"),
    ({"typical_epsilon": 1.5}, "typical_epsilon: 1.5; allowed: .*at most 1"),
    ({"typical_epsilon": 0.0}, "typical_epsilon: 0.0; allowed: above 0"),
    ({"acceptance": "top_m", "top_m": 0}, "top_m: 0 .*allowed: 1 or more"),
    ({"acceptance": "threshold", "medusa_choices": [1, 2]}, "choices: .* without acceptance: thr"),
    ({"acceptance": "threshold", "threshold": 0.0}, "threshold: 0.0; allowed: above 0"),
    ({"acceptance": "threshold", "threshold": 1.1}, "threshold: 1.1; allowed: .*at most 1"),
    ({"lookahead": "auto", "acceptance": "typical"}, "auto; .* typical: fixed, .*: exact"),
    ({"lookahead": "acceptance", "acceptance": "top_m"}, "lookahead: acceptance; .* top_m: fixed"),
    ({"lookahead": "auto", "acceptance": "threshold"}, "lookahead: auto; .* threshold: fixed"),
    ({"ctc_entropy_threshold": -0.1}, "ctc_entropy_threshold: -0.1; allowed: 0 or more"),
    ({"ctc_likelihood_threshold": math.nan}, "ctc_likelihood_threshold: nan; allowed: 0 or m"),
    ({"ctc_entropy_threshold": 1, "search": "beam"}, "allowed with search: greedy"),
    ({"ctc_likelihood_threshold": 0.1, "search": "beam"}, "ctc_likelihood.*search: greedy"),
    ({"ctc_likelihood_threshold": 0.1, "acceptance": "typical"}, "0.1; .*: exact, not typ"),
    ({"ctc_entropy_threshold": 1, "acceptance": "threshold"}, "allowed with acceptance: exact"),
    ({"search": "beam", "patience": 0.0}, "patience: 0.0; allowed: above 0"),
    ({"search": "beam", "patience": math.inf}, "patience: inf; allowed: above 0, at most 100"),
    ({"search": "beam", "patience": 0.05}, "patience: 0.05; allowed with beam_size 5: more"),
    ({"search": "beam", "length_penalty": 1.5}, "length_penalty: 1.5; allowed: 0 to 1"),
    ({"patience": 1.0}, "patience: 1.0; allowed with search: beam"),
    ({"search": "beam", "length_penalty": 0.5, "acceptance": "threshold"}, "search: beam and"),
)
def test_bad_options_are_refused(options):
    check_options(SearchOptions(**{"search": "greedy"} | options), 5)
