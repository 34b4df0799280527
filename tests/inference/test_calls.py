"""Calls of Speech2Text as in ESPnet 202611: lists of utterances, and arrays of other shapes."""

import numpy as np
import pytest
import torch
from espnet2.bin.asr_inference import Speech2Text as ESPnetSpeech2Text
from experiment import make_experiment, speeches
from refusals import assert_refused
from stock_experiment import assert_nbest, files, nbest, stock_experiment

from espnet_medusa import Speech2Text
from espnet_medusa.decoding.search.search import Search


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return stock_experiment(tmp_path_factory.mktemp("stock"))


@pytest.mark.parametrize("options", [{"beam_size": 3, "nbest": 2}, {"ctc_weight": 1.0}], ids=str)
def test_lists_have_espnets_nbest_lists(options, stock):
    """With our search, and with ESPnet's own, which decodes with ``ctc_weight: 1``."""
    options = files(stock) | {"beam_size": 2, "ctc_weight": 0.3} | options
    ours, theirs, given = Speech2Text(**options), ESPnetSpeech2Text(**options), speeches(step=1700)
    padded = torch.nn.utils.rnn.pad_sequence([*map(torch.tensor, given)], batch_first=True)
    lengths = [len(speech) for speech in given]
    results = [ours(given), ours(tuple(given)), ours.batch_decode(given)]
    results += [ours.batch_decode(padded, torch.tensor(lengths)), [ours(one) for one in given]]
    expected = [nbest(theirs(speech)) for speech in given]
    for lists in results:
        for one, known in zip(lists, expected, strict=True):
            assert_nbest(one, known)
    assert ours([]) == []


def test_a_list_is_one_batch_with_the_sum_of_its_statistics(tmp_path, monkeypatch):
    model = Speech2Text(**files(make_experiment(tmp_path)), search="greedy", maxlenratio=-9)
    given, calls = speeches(), 0
    for speech in given:
        model(speech)
        calls = max(calls, model.statistics.decoder_calls)
    sizes, search = [], Search.__call__
    monkeypatch.setattr(
        Search,
        "__call__",
        lambda self, *rest, **more: sizes.append(len(rest[0])) or search(self, *rest, **more),
    )
    model(given)
    assert sizes == [3], "one search over the whole list"
    assert model.statistics.audio_seconds == sum(map(len, given)) / 16000
    assert calls <= model.statistics.decoder_calls <= 3 * calls


@pytest.mark.parametrize("as_array", [np.asarray, torch.as_tensor])
def test_one_channel_may_have_its_own_dimension(as_array, stock):
    model, [speech] = Speech2Text(**files(stock), beam_size=2), speeches(1)
    expected = nbest(model(speech))
    for other in (speech[None], speech[:, None], speech.astype(np.float64)):
        assert_nbest(model(as_array(other)), expected)
        assert_nbest(model([as_array(other)])[0], expected)
        assert model.statistics.audio_seconds == len(speech) / 16000
    message = r"speech: has shape \(2, 4000\); allowed: \(samples,\), one channel; several"
    assert_refused(message, model, as_array(np.stack([speech, speech])))


def test_an_utterance_that_cannot_be_decoded_is_named(tmp_path):
    model = Speech2Text(**files(make_experiment(tmp_path)), search="greedy")
    nan, long = np.full(4000, np.nan, np.float32), np.zeros(60000, np.float32)
    for bad, reason in ((nan, "NaN"), (long, "3.75 s"), (nan[None, None], "shape"), ("a", "'a'")):
        message = f"utterance 2 of 3: .*{reason}"
        assert_refused(message, model, [speeches(1)[0], bad, speeches(1)[0]])
    padded = torch.zeros(2, 4000)
    assert_refused(
        "speech_lengths: None; allowed with padded speech: 2", model.batch_decode, padded
    )
