"""CTC over other units than the decoder's tokens: it drafts, and is refused for scoring."""

import pytest
import torch
from experiment import ENCODER, make_experiment, speeches
from stock_experiment import files, nbest
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast
from whisper_training import save_tokenizer_of_bytes

from espnet_medusa.draft.ctc import CTCProposer
from espnet_medusa.draft.mixed import MixedProposer
from espnet_medusa.errors import InputError
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.whisper.tokens import END, START

BLOCK = {"input_layer": "conv1d2", "output_size": 16, "num_blocks": 0}
UNITS = {
    "ctc_weight": 0.3, "ctc_units": 256, "report_wer": False, "sym_sos": START, "sym_eos": END,
    "extract_feats_in_collect_stats": False,
}  # fmt: skip
SEARCHES = {
    "greedy": {"search": "greedy", "maxlenratio": -14},
    "beam": {"beam_size": 3, "ctc_weight": 0.0, "nbest": 3, "maxlenratio": -10},
}
DRAFTERS = [
    ({"drafter": "ctc"}, CTCProposer),
    ({"drafter": "ctc", "draft_width": 3, "draft_depth": 8}, CTCProposer),
    ({"drafter": "ctc", "lookahead": "cost"}, CTCProposer),
    ({"drafter": "ctc+heads"}, MixedProposer),
]


@pytest.fixture(scope="module")
def experiments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tokens = save_tokenizer_of_bytes(folder / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")
    tokenizer.backend_tokenizer.decoder = ByteLevel()
    tokenizer.save_pretrained(folder / "tokenizer")
    whisper = {
        "tokens": tokens, "token_type": "hugging_face", "bpemodel": str(folder / "tokenizer"),
        "preprocessor": "whisper", "preprocessor_conf": {"language": "en"},
        "encoder_conf": ENCODER | {"window": "whisper"},
    }  # fmt: skip
    return [
        make_experiment(folder / "linear", 3, model_conf=UNITS, **whisper),
        make_experiment(
            folder / "block", 4,
            model_conf=UNITS | {"ctc_block": "transformer", "ctc_block_conf": BLOCK}, **whisper,
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("search", SEARCHES)
def test_drafts_of_ctc_units_keep_the_text(experiments, search):
    for experiment in experiments:
        plain = Speech2Text(**files(experiment), draft_depth=0, **SEARCHES[search])
        expected = [nbest(plain(speech)) for speech in speeches(step=9000)]
        for options, kind in DRAFTERS:
            speech2text = Speech2Text(**files(experiment), **options, **SEARCHES[search])
            assert isinstance(speech2text.search.planner.proposer, kind)
            alone = [speech2text(speech) for speech in speeches(step=9000)]
            together = speech2text.decode(speeches(step=9000))
            assert sum(sum(one.statistics.drafted) for one in together) > 0
            for found in (alone, [one.results for one in together]):
                for results, (rows, scores) in zip(found, expected, strict=True):
                    found_rows, found_scores = nbest(results)
                    assert found_rows == rows
                    assert found_scores == pytest.approx(scores, abs=1e-3)


def test_drafters_get_encoder_output_without_padding(experiments):
    speech2text = Speech2Text(**files(experiments[0]), search="greedy", drafter="ctc")
    audio = speech2text.model.batch(speeches(step=9000))
    memory, frames = speech2text.model.encode(audio)
    assert frames.tolist() == [100] * 3
    inputs = speech2text.model.draft_inputs(audio, [[0]] * 3)
    # 16,000 samples a second, 320 a frame, half a second more.
    assert [len(one.memory) for one in inputs] == [38, 66, 94]
    for one, row in zip(inputs, memory, strict=True):
        assert torch.equal(one.memory, row[: len(one.memory)])


@pytest.mark.parametrize(
    "options",
    [{}, {"ctc_weight": 0.3}, {"ctc_weight": 1.0}, {"ctc_weight": 0.3, "time_sync": True}],
    ids=str,
)
def test_ctc_scores_over_other_units_are_refused(experiments, options):
    weight = options.get("ctc_weight", 0.5)
    with pytest.raises(InputError, match=f"ctc_weight: {weight}; allowed .*ctc_units: 0.0"):
        Speech2Text(**files(experiments[0]), **options)
