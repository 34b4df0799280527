"""Token lists of stage 5."""

import pytest
import sentencepiece
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from espnet_medusa import stages
from espnet_medusa.recipe.tokens import make_cleaner

TEXT = "a one two three\nb two three four\nc three four five\nd\n"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").write_text(TEXT)
    return tmp_path / "text"


def make(text, *options):
    token_list = text.parent / "list" / "tokens.txt"
    stages.main(["make_tokens", "--text", str(text), "--token_list", str(token_list), *options])
    return token_list.read_text("utf-8").split("\n")[:-1]


def test_bpe_has_espnets_order_and_the_given_number_of_tokens(text):
    tokens = make(text, "--token_type", "bpe", "--nbpe", "18")
    assert len(tokens) == len(set(tokens)) == 18
    assert tokens[:2] == ["<blank>", "<unk>"] and tokens[-1] == "<sos/eos>"
    assert not {"<s>", "</s>"} & set(tokens)
    model = sentencepiece.SentencePieceProcessor(model_file=str(text.parent / "list" / "bpe.model"))
    assert set(model.encode("two three", out_type=str)) <= set(tokens)


def test_bpe_symbols_are_not_split(text, tmp_path):
    (tmp_path / "symbols").write_text("<noise>\n")
    options = ["--nbpe", "19", "--non_linguistic_symbols", str(tmp_path / "symbols")]
    assert "<noise>" in make(text, "--token_type", "bpe", *options)


def test_too_many_bpe_tokens_are_refused_with_the_maximum(text, capsys):
    with pytest.raises(SystemExit):
        make(text, "--token_type", "bpe", "--nbpe", "5000")
    shown = capsys.readouterr().err.splitlines()[-1]
    assert "--nbpe 5000" in shown and "<= " in shown and "train.txt" in shown


def test_words_are_sorted_by_frequency(text):
    expected = ["<blank>", "<unk>", "three", "four", "two", "five", "one", "<sos/eos>"]
    assert make(text, "--token_type", "word") == expected


def test_characters_write_blanks_as_espnet_does(text):
    tokens = make(text, "--token_type", "char")
    assert set(tokens) == {"<blank>", "<unk>", "<space>", "<sos/eos>", *"onetwhrfuiv"}
    assert tokens[2] == "e"


def test_the_cleaner_changes_the_tokens(text):
    pytest.importorskip("tacotron_cleaner", reason="ESPnet 202611 leaves it to an extra")
    tokens = make(text, "--token_type", "word", "--cleaner", "tacotron")
    assert "THREE" in tokens and "three" not in tokens


def test_hugging_face_tokens_are_ordered_by_id(tmp_path):
    vocabulary = {"b": 0, "a": 1, "<unk>": 3}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "model")
    (tmp_path / "text").write_text(TEXT)
    options = ["--token_type", "hugging_face", "--hugging_face_model", str(tmp_path / "model")]
    assert make(tmp_path / "text", *options) == ["b", "a", "<unused2>", "<unk>"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--token_type", "whisper_en"], "--token_list FILE"),
        (["--token_type", "hugging_face"], "--hugging_face_model_name_or_path"),
        (["--token_type", "word", "--cleaner", "nonesuch"], "--cleaner nonesuch"),
    ],
)
def test_user_errors_name_the_option(text, capsys, options, message):
    with pytest.raises(SystemExit) as error:
        make(text, *options)
    assert error.value.code == 1
    assert message in capsys.readouterr().err


def test_no_text_is_an_error(tmp_path, capsys):
    (tmp_path / "text").write_text("a\nb\n")
    with pytest.raises(SystemExit):
        make(tmp_path / "text", "--token_type", "char")
    assert "no text to make tokens from" in capsys.readouterr().err


def test_no_cleaner_keeps_the_text():
    assert make_cleaner("none")("A b!") == "A b!"
