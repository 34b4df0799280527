"""ESPnet's token types of Whisper, against openai-whisper's own tokenizer."""

from types import SimpleNamespace

from cases import cases
from espnet2.text.build_tokenizer import build_tokenizer
from espnet2.text.whisper_token_id_converter import OpenAIWhisperTokenIDConverter
from espnet2.text.whisper_tokenizer import OpenAIWhisperTokenizer
from refusals import command_refused, refuses
from whisper.tokenizer import get_tokenizer

from espnet_medusa.bin import hugging_face_export_vocabulary, whisper_export_vocabulary
from espnet_medusa.decoding.search.state import EndedHypothesis
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.decoding import TextWriter
from espnet_medusa.inference.trace_text import TraceText
from espnet_medusa.networks.whisper.text import TextOptions, find_text

TEXTS = ("hello, world", " It's 5 o'clock.", "déjà vu für 你好 🙂", "a", "")
CODES = {"noinfo": "en", "jpn": "ja", "zh-TW": "zh"}


def openais(model_type: str, language: str, task: str):
    if model_type == "whisper_en":
        return get_tokenizer(multilingual=False)
    return get_tokenizer(multilingual=True, language=CODES.get(language, language), task=task)


@cases(
    ("whisper_en", "noinfo", "transcribe"), ("whisper_multilingual", "noinfo", "transcribe"),
    ("whisper_multilingual", "de", "translate"), ("whisper_multilingual", "jpn", "transcribe"),
    ("whisper_multilingual", "zh-TW", "transcribe"),
)  # fmt: skip
def test_labels_equal_openais(model_type, language, task):
    oracle = openais(model_type, language, task)
    options = {"whisper_language": language, "whisper_task": task}
    tokenizer = build_tokenizer(model_type, model_type, **options)
    converter = OpenAIWhisperTokenIDConverter(model_type, language, task)
    prompt = converter.tokenizer.sot_sequence_including_notimestamps
    assert prompt == oracle.sot_sequence_including_notimestamps
    for text in TEXTS:
        spaced = text if text.startswith(" ") or not text else f" {text}"
        ids = converter.tokens2ids(tokenizer.text2tokens(text))
        assert ids == [*prompt[1:], *oracle.encode(spaced)]
        tokens = converter.ids2tokens([*prompt, *ids, oracle.eot, oracle.timestamp_begin])
        assert tokenizer.tokens2text(tokens) == text.removeprefix(" ")


def test_results_and_traces_have_tokens_that_espnets_converter_leaves_out():
    tokenizer = build_tokenizer("whisper_en", "whisper_en")
    converter = OpenAIWhisperTokenIDConverter("whisper_en")
    oracle = openais("whisper_en", "noinfo", "transcribe")
    ids = [oracle.timestamp_begin, *oracle.encode(" hello, world"), oracle.timestamp_begin + 50]
    pieces = TraceText(converter, tokenizer).pieces([*ids, oracle.eot])
    assert "".join(text for text, special in pieces if not special) == "hello, world"
    assert [special for _, special in pieces] == [True, *[False] * (len(ids) - 2), True, True]
    writer = TextWriter(converter, tokenizer, frozenset(), 1, range(oracle.timestamp_begin, 60000))
    state = SimpleNamespace(
        n_best=[EndedHypothesis([*ids, oracle.eot], -1.0, (-1.0,), len(ids) + 2)],
        statistics=DecodingStatistics(), trace=None,
    )  # fmt: skip
    [(text, _, tokens, _)] = writer.write(state, [oracle.sot], ["decoder"]).results
    assert (text, tokens) == ("hello, world", ids)


def test_added_tokens_follow_whispers(tmp_path):
    path = tmp_path / "added.txt"
    path.write_text("<laugh>\n<cough>\n")
    options = {"added_tokens_txt": str(path), "sot": True}
    tokenizer = OpenAIWhisperTokenizer("whisper_multilingual", **options)
    converter = OpenAIWhisperTokenIDConverter("whisper_multilingual", **options)
    ids = converter.tokens2ids(tokenizer.text2tokens("yes <laugh> <sc> no"))
    assert [number for number in ids if number >= 51865] == [51865, 51867]
    assert converter.get_num_vocabulary_size() == 51868
    assert "<laugh>" in converter.ids2tokens(ids)
    # Added tokens do not affect the next tokenizer.
    assert OpenAIWhisperTokenIDConverter("whisper_multilingual").get_num_vocabulary_size() == 51865


@refuses(
    (("whisper_tiny",), "bpemodel: 'whisper_tiny'; allowed: whisper_en, whisper_multilingual"),
    (("whisper_multilingual", "xx"), "language: 'xx'; allowed"),
    (("whisper_multilingual", "en", "sing"), "task: 'sing'; allowed: transcribe, translate"),
    (("whisper_multilingual", "en", "transcribe", False, "<sc>", "none.txt"), "none.txt: cann"),
)
def test_unknown_options_are_refused(arguments):
    OpenAIWhisperTokenizer(*arguments)


def export(output, kind: str, *more: str) -> list[str]:
    options = ["--whisper_model", kind, "--add_token_file_name", "none", "--whisper_language", "de"]
    whisper_export_vocabulary.main([*options, *more, "--output", str(output)])
    return output.read_text("utf-8").split("\n")[:-1]


def test_lists_have_every_token_at_its_id(tmp_path, capfd):
    for kind, size in (("whisper_en", 51864), ("whisper_multilingual", 51865)):
        tokens = export(tmp_path / kind / "tokens.txt", kind)
        oracle = openais(kind, "de", "transcribe")
        assert len(tokens) == size == len({*tokens})
        for name, number in oracle.special_tokens.items():
            assert tokens[number] == name
        assert tokens[oracle.encode(" the")[0]] == "Ġthe"
    assert export(tmp_path / "sot.txt", "whisper_en", "--sot_asr", "true")[51864:] == ["<sc>"]
    whisper_export_vocabulary.main(["--whisper_model", "whisper_en", "--output", "-"])
    assert len(capfd.readouterr().out.splitlines()) == 51864


def test_hugging_face_lists_have_added_tokens(tmp_path, capsys):
    folder = tmp_path / "tokenizer"
    find_text(51865, None, TextOptions(), {}).save(folder)
    output = tmp_path / "list" / "tokens.txt"
    options = ["--model_name_or_path", str(folder), "--output", str(output)]
    hugging_face_export_vocabulary.main(options)
    tokens = output.read_text("utf-8").split("\n")[:-1]
    assert tokens == export(tmp_path / "ours.txt", "whisper_multilingual")
    # As in ESPnet: each is inserted into the list after the previous ones.
    more = [f"--add_symbol={entry}" for entry in ("<blank>:0", "<unk>:1", "a:b:-1", "<x>:-2")]
    hugging_face_export_vocabulary.main([*options, *more])
    expected = ["<blank>", "<unk>", *tokens, "<x>", "a:b"]
    assert output.read_text("utf-8").split("\n")[:-1] == expected
    with command_refused(capsys, "--add_symbol <blank>; allowed: SYMBOL:PLACE"):
        hugging_face_export_vocabulary.main([*options, "--add_symbol", "<blank>"])
