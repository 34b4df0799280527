"""From audio to text on a mock GPU: the CPU's text, no operand on the CPU, and few waits."""

from collections import Counter

import pytest
import torch
from experiment import TOKENS, make_experiment, noise, training_config
from pretended_cuda import pretended_cuda

from espnet_medusa.decoding.runtime.loop_graphs import CALLS_PER_READ
from espnet_medusa.inference.speech2text import Speech2Text

GREEDY = {"search": "greedy", "maxlenratio": -6, "minlenratio": -4}
BEAM = {"search": "beam", "beam_size": 3, "maxlenratio": -5, "minlenratio": -3}
WAYS = {
    "plain": GREEDY | {"draft_depth": 0},
    "heads": GREEDY,
    "heads, half precision": GREEDY | {"decoder_precision": "bfloat16"},
    "encoder in half precision": GREEDY | {"encoder_precision": "bfloat16"},
    "heads, tree": GREEDY | {"draft_width": 3},
    "heads, few tokens": GREEDY | {"draft_vocab_size": 8},
    "CTC": GREEDY | {"drafter": "ctc"},
    "CTC and heads": GREEDY | {"drafter": "ctc+heads", "draft_width": 2},
    "typical": GREEDY | {"acceptance": "typical"},
    "threshold": GREEDY | {"acceptance": "threshold", "threshold": 0.3},
    "constraints": GREEDY | {
        "suppress_tokens": [4, 5], "begin_suppress_tokens": [6], "forced_prefix": [3],
        "exponential_decay_length_penalty": [4, 1.1],
    },
    "draft model": GREEDY | {"draft_model": "recurrent"},
    "beam": BEAM,
    "beam of CTC and decoder": BEAM | {"ctc_weight": 0.3, "draft_depth": 2},
    "beam, heads": BEAM | {"draft_depth": 3, "draft_width": 4},
    "beam, CTC": BEAM | {"drafter": "ctc", "draft_depth": 3},
}  # fmt: skip
READERS = {  # of drafts
    "block": "decoding/search/drafting/decoder_steps.py: _draft",
    "recurrent": "decoding/search/drafting/decoder_steps.py: read",
}
SPEECHES = [noise(length, length) for length in (16000, 9000, 4321)]
ALL = "attending"
FEW = ["heads", "heads, tree", "beam, heads"]


@pytest.fixture(scope="module")
def experiments(tmp_path_factory):
    made = {}
    for heads in (ALL, "block", "recurrent"):
        conf = training_config()["decoder_conf"] | {"heads": heads}
        made[heads] = one = make_experiment(tmp_path_factory.mktemp(heads), decoder_conf=conf)
        weights = torch.load(one.model)
        weights["decoder.token_counts"] = torch.arange(len(TOKENS))
        torch.save(weights, one.model)
    return made


def decode(experiments, heads, device, options, alone):
    """Texts and decoder calls of all utterances together, and of the last one if ``alone``."""
    chosen, experiment = {"ctc_weight": 0.0, "lm_weight": 0.0} | options, experiments[heads]
    if "draft_model" in options:
        draft = experiments[options["draft_model"]]
        chosen |= {"draft_model": str(draft.config), "draft_model_file": str(draft.model)}
    model = Speech2Text(experiment.config, experiment.model, device=device, **chosen)
    found = [*model.decode(SPEECHES), *(model.decode(SPEECHES[-1:]) if alone else [])]
    return [(one.results[0][0], one.statistics.decoder_calls) for one in found]


@pytest.mark.parametrize(
    ("heads", "way"),
    [(ALL, way) for way in WAYS] + [(one, way) for one in ("block", "recurrent") for way in FEW],
)
def test_texts_are_those_of_a_cpu(experiments, heads, way):
    given = WAYS[way], way in FEW
    expected = decode(experiments, heads, "cpu", *given)
    with pretended_cuda() as gpu:
        assert decode(experiments, heads, "cuda:0", *given) == expected
    assert gpu.graphs and any(calls > 1 for _, calls in expected)
    assert not any(
        place.startswith(("decoding/runtime/cuda_graph", "decoding/tree/node_"))
        for place in gpu.waits
    )


@pytest.mark.parametrize("way", ["plain", "heads", "heads, tree", "CTC", "beam, heads"])
def test_texts_of_waiting_utterances_are_those_of_a_cpu(experiments, way):
    """Two are in encoder and decoder at once; the general loop decodes them in batches of two."""
    experiment, speeches = experiments[ALL], [noise(n, 3000 * n) for n in (5, 1, 3, 2, 4)]
    options = {"ctc_weight": 0.0, "lm_weight": 0.0} | WAYS[way]

    def decode(device, **others):
        model = Speech2Text(experiment.config, experiment.model, device=device, **options)
        assert model.model.batches_per_call(2) == (4 if others and way in ("plain", "heads") else 1)
        return [
            (one.results[0][0], one.statistics.decoder_calls)
            for one in model.decode(speeches, **others)
        ]

    expected = decode("cpu")
    with pretended_cuda():
        assert decode("cuda:0", together=2) == expected


def waits_of_greedy_search(experiment) -> tuple[Counter, int]:
    """Return how often the host waits, by place, and the decoder calls of a batch."""
    options = {"ctc_weight": 0.0, "lm_weight": 0.0} | GREEDY
    with pretended_cuda() as gpu:
        model = Speech2Text(experiment.config, experiment.model, device="cuda:0", **options)
        gpu.waits.clear()
        calls = max(one.statistics.decoder_calls for one in model.decode(SPEECHES))
    return gpu.waits, calls


@pytest.mark.parametrize("heads", ["block", "recurrent"])
def test_the_host_waits_once_per_call_and_once_per_draft(experiments, heads):
    """For results; all other transfers are asynchronous."""
    waits, calls = waits_of_greedy_search(experiments[heads])
    assert waits.pop("decoding/tree/token_tree.py: download") == calls
    assert waits.pop(READERS[heads]) < calls
    assert all(count <= len(SPEECHES) for count in waits.values()), "once an utterance"


def test_the_host_waits_once_for_several_calls_with_attending_heads(experiments):
    waits, calls = waits_of_greedy_search(experiments["attending"])
    reads = 1 + -(-(calls - 1) // CALLS_PER_READ)
    assert waits.pop("decoding/runtime/loop_graphs.py: read") == reads
    assert all(count <= len(SPEECHES) for count in waits.values()), "once an utterance"
