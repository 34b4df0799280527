"""Names of languages: openai-whisper's habits (whisperX 251), and tokens as in transformers."""

import pytest
from cases import cases
from experiment import noise
from tiny_whisper import read_whisper_experiment, save_tiny_whisper, whisper_experiment
from whisper.tokenizer import TO_LANGUAGE_CODE

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.whisper.tokens import language_code


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    weights = save_tiny_whisper(folder / "hf", hidden_size=8)
    return read_whisper_experiment(whisper_experiment(folder / "exp", weights))


@cases(
    ("German", "de"), ("GERMAN", "de"), ("DE", "de"), ("<|de|>", "de"), ("mandarin", "zh"),
    ("Detect", "detect"), (" English ", "en"),
)  # fmt: skip
def test_names_and_cases(given, code, trained):
    options = {"search": "greedy", "ctc_weight": 0.0, "maxlenratio": -4, "draft_depth": 0}
    speech2text = Speech2Text(trained=trained, language=given, **options)
    whisper = speech2text.whisper
    assert whisper.language == code and whisper.detects(given) == (code == "detect")
    if code != "detect":
        assert whisper.tokens.prompt(given) == whisper.tokens.prompt(code)
        for decoding in speech2text.decode([noise(0)] * 2, [None, given]):
            assert decoding.language == code
        with pytest.raises(InputError, match="language: 'Klingon'; allowed: detect .*English"):
            speech2text.decode([noise(0)], ["Klingon"])


def test_every_name_of_openai_whisper():
    for name, code in TO_LANGUAGE_CODE.items():
        assert language_code(name.title()) == language_code(code.upper()) == code
    assert [language_code(name) for name in ("Klingon", "xyz", "")] == ["Klingon", "xyz", ""]
    others = {"deu": "de", "cmn": "zh", "pt-BR": "pt", "en_US": "en", "jav": "jw", "yue": "yue"}
    assert {name: language_code(name) for name in others} == others
