"""Draft defaults of a model apply to options that are not set."""

import pytest

from espnet_medusa.errors import InputError
from espnet_medusa.search.options import SearchOptions, with_draft_defaults

CONF = {"greedy": {"draft_depth": 3, "draft_vocab_size": 900}, "beam": {"draft_depth": 0}}


def chosen(**given):
    options = with_draft_defaults(SearchOptions(**given), CONF)
    return options.draft_depth, options.draft_vocab_size


def test_options_that_are_set_stay():
    assert chosen(search="greedy") == (3, 900)
    assert chosen(search="greedy", drafter="heads", acceptance="typical") == (3, 900)
    assert chosen(search="greedy", draft_depth=0) == (0, 900)
    assert chosen(search="greedy", draft_vocab_size=50) == (3, 50)
    assert chosen(search="beam") == (0, None)
    assert chosen(search="beam", draft_depth=7) == (7, None)


@pytest.mark.parametrize(
    "given", [{"drafter": "ctc"}, {"acceptance": "threshold"}, {"medusa_choices": [1, 2]}], ids=str
)
def test_defaults_are_for_verified_heads_only(given):
    assert chosen(search="greedy", **given) == (None, None)


@pytest.mark.parametrize("conf", [None, {}, {"beam": {"draft_width": 2}}], ids=str)
def test_without_defaults_options_stay(conf):
    options = SearchOptions(search="greedy")
    assert with_draft_defaults(options, conf) == options


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"greedily": {}}, "draft_conf: 'greedily' is not known (did you mean 'greedy'?)"),
        ({"greedy": {"depth": 3}}, "draft_conf.greedy: unknown option 'depth'"),
        ({"greedy": {"draft_depth": -1}}, "draft_conf.greedy.draft_depth: -1 is too small"),
        ({"greedy": {"draft_vocab_size": True}}, "draft_vocab_size: True; allowed: a whole"),
        ({"greedy": 3}, "draft_conf.greedy: allowed: names of options with values"),
        ([3], "draft_conf: allowed: options by search"),
    ],
)
def test_bad_defaults_are_refused(conf, message):
    with pytest.raises(InputError) as refusal:
        with_draft_defaults(SearchOptions(search="greedy"), conf)
    assert message in str(refusal.value)
