"""From audio to text on a GPU: the CPU's text, no operand left behind, and few waits."""

import numpy as np
import pytest
from experiment import TOKENS, make_experiment, training_config
from pretended_cuda import pretended_cuda

from espnet_medusa.inference.speech2text import Speech2Text

GREEDY = {"search": "greedy", "maxlenratio": -25}
BEAM = {"search": "beam", "beam_size": 3, "maxlenratio": -12}
WAYS = {
    "plain": GREEDY | {"draft_depth": 0},
    "heads": GREEDY,
    "heads, half precision": GREEDY | {"decoder_precision": "bfloat16"},
    "heads, tree": GREEDY | {"draft_width": 3},
    "heads, few tokens": GREEDY | {"draft_vocab_size": 8},
    "CTC": GREEDY | {"drafter": "ctc"},
    "CTC and heads": GREEDY | {"drafter": "ctc+heads", "draft_width": 2},
    "typical": GREEDY | {"acceptance": "typical"},
    "threshold": GREEDY | {"acceptance": "threshold", "threshold": 0.3},
    "constraints": GREEDY | {
        "suppress_tokens": [4, 5], "begin_suppress_tokens": [6], "forced_prefix": [3],
        "exponential_decay_length_penalty": [4, 1.1], "minlenratio": -3,
    },
    "beam": BEAM,
    "beam of CTC and decoder": BEAM | {"ctc_weight": 0.3, "draft_depth": 2},
    "beam, heads": BEAM | {"draft_depth": 3, "draft_width": 4},
    "beam, CTC": BEAM | {"drafter": "ctc", "draft_depth": 3},
}  # fmt: skip
SPEECHES = [
    0.1 * np.random.default_rng(length).standard_normal(length).astype(np.float32)
    for length in (16000, 9000, 4321)
]


@pytest.fixture(scope="module", params=["block", "recurrent", "attending"])
def experiment(request, tmp_path_factory):
    conf = training_config()["decoder_conf"] | {"heads": request.param}
    return make_experiment(tmp_path_factory.mktemp("exp"), decoder_conf=conf)


def texts(experiment, device, options):
    """Of all utterances together, and of the last one alone."""
    chosen = {"ctc_weight": 0.0, "lm_weight": 0.0, "nbest": 2} | options
    model = Speech2Text(experiment.config, experiment.model, device=device, **chosen)
    found = [*model.decode(SPEECHES), *model.decode(SPEECHES[-1:])]
    return [[result[0] for result in one.results] for one in found]


@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_the_cpus(experiment, way):
    expected = texts(experiment, "cpu", WAYS[way])
    with pretended_cuda():
        assert texts(experiment, "cuda:0", WAYS[way]) == expected
    assert any(any(one) for one in expected)
