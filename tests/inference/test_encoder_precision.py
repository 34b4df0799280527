"""The option encoder_precision."""

import pytest
from experiment import make_experiment, speeches
from stock_experiment import files, stock_experiment

from espnet_medusa.errors import InputError
from espnet_medusa.inference.speech2text import Speech2Text

GREEDY = {"search": "greedy", "maxlenratio": -12}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return make_experiment(tmp_path_factory.mktemp("experiment"))


def memory(speech2text: Speech2Text):
    return speech2text.model.encode(speech2text.model.batch(speeches()))[0]


def test_encoder_precision_defaults_to_decoder_precision(experiment):
    def load(**options):
        return memory(Speech2Text(**files(experiment), **GREEDY, **options))

    exact = load()
    assert load(encoder_precision="float32", decoder_precision="int8").equal(exact)
    follows, given = load(decoder_precision="int8"), load(encoder_precision="int8")
    assert follows.equal(given)
    assert 0 < (given - exact).norm() < 0.05 * exact.norm()


def test_releasing_weights_keeps_texts(experiment):
    options = GREEDY | {"decoder_precision": "int8", "draft_model": str(experiment.folder)}
    speech2text = Speech2Text(**files(experiment), **options)
    before = [decoding.results[0][0] for decoding in speech2text.decode(speeches())]
    speech2text.release_weights()
    assert [decoding.results[0][0] for decoding in speech2text.decode(speeches())] == before
    if speech2text.encoder.packed:
        weights = speech2text.asr_model.encoder.whisper.parameters()
        assert not any(weight.numel() for weight in weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder_precision": "int4"}, "decoder_precision: 'int4' is not known"),
        ({"encoder_precision": "float16"}, "encoder_precision: float16; allowed on a CPU: float32"),
    ],
)
def test_unsupported_precisions_are_refused(experiment, options, message):
    with pytest.raises(InputError, match=message):
        Speech2Text(**files(experiment), **GREEDY, **options)


def test_other_encoders_refuse_a_precision(tmp_path):
    stock = stock_experiment(tmp_path / "conformer")
    with pytest.raises(InputError, match="encoder_precision: int8; allowed with encoder: hf_whi"):
        Speech2Text(**files(stock), **GREEDY, encoder_precision="int8")
    Speech2Text(**files(stock), **GREEDY, decoder_precision="int8")(speeches(1)[0])
