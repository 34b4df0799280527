"""Token lists of stage 5, and shapes of training with Whisper's tokens."""

import re
import shutil

import pytest
import sentencepiece
from cases import cases
from refusals import assert_refused, command_refused
from tiny_whisper import save_tiny_whisper
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from espnet_medusa.bin import stage
from espnet_medusa.data.files.token_list import read_token_list, write_token_list
from espnet_medusa.data.kaldi.dump_dir import write_dump_dir
from espnet_medusa.data.kaldi.table import read_table, write_table
from espnet_medusa.espnet.task import MedusaASRTask
from espnet_medusa.inference.reader import build_preprocess
from espnet_medusa.networks.whisper.tokens import read_whisper_tokens
from espnet_medusa.recipes.tokens import make_cleaner

TEXT = "a one two three\nb two three four\nc three four five\nd\n"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").write_text(TEXT)
    return tmp_path / "text"


def make(text, *options):
    token_list = text.parent / "list" / "tokens.txt"
    stage.main(["make_tokens", "--text", str(text), "--token_list", str(token_list), *options])
    return token_list.read_text("utf-8").split("\n")[:-1]


def test_bpe_has_espnets_order_and_does_not_split_symbols(text, tmp_path):
    (tmp_path / "symbols").write_text("<noise>\n")
    options = ["--nbpe", "19", "--non_linguistic_symbols", str(tmp_path / "symbols")]
    tokens = make(text, "--token_type", "bpe", *options)
    assert len(tokens) == len(set(tokens)) == 19 and "<noise>" in tokens
    assert tokens[:2] == ["<blank>", "<unk>"] and tokens[-1] == "<sos/eos>"
    assert not {"<s>", "</s>"} & set(tokens)
    model = sentencepiece.SentencePieceProcessor(model_file=str(text.parent / "list" / "bpe.model"))
    assert set(model.encode("two three", out_type=str)) <= set(tokens)


def test_words_are_sorted_by_frequency_and_characters_have_a_blank(text):
    expected = ["<blank>", "<unk>", "three", "four", "two", "five", "one", "<sos/eos>"]
    assert make(text, "--token_type", "word") == expected
    tokens = make(text, "--token_type", "char")
    assert set(tokens) == {"<blank>", "<unk>", "<space>", "<sos/eos>", *"onetwhrfuiv"}
    assert tokens[2] == "e"


def test_the_cleaner_changes_the_tokens(text):
    assert make_cleaner("none")("A b!") == "A b!"
    pytest.importorskip("tacotron_cleaner", reason="ESPnet 202611 leaves it to an extra")
    tokens = make(text, "--token_type", "word", "--cleaner", "tacotron")
    assert "THREE" in tokens and "three" not in tokens


@pytest.mark.parametrize("token", ["a\nb", "a\rb", "\r"])
def test_a_token_with_a_line_break_is_refused(tmp_path, token):
    message = f"token {re.escape(repr(token))} has a line break"
    assert_refused(message, write_token_list, tmp_path / "x", [token])


def test_a_token_list_of_windows_has_the_same_tokens(tmp_path):
    (tmp_path / "tokens.txt").write_bytes(b"<unk>\r\na\r\n")
    assert read_token_list(tmp_path / "tokens.txt") == ["<unk>", "a"]


def test_hugging_face_tokens_are_ordered_by_id(text, tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"b": 0, "a": 1, "<unk>": 3}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "model")
    options = ["--token_type", "hugging_face", "--hugging_face_model", str(tmp_path / "model")]
    assert make(text, *options) == ["b", "a", "<unused2>", "<unk>"]


@cases(
    (["--token_type", "bpe", "--nbpe", "5000"], ["--nbpe 5000", "<= ", "train.txt"]),
    (["--token_type", "whisper_en"], ["--token_list FILE"]),
    (["--token_type", "hugging_face"], ["--hugging_face_model_name_or_path"]),
    (["--token_type", "word", "--cleaner", "nonesuch"], ["--cleaner nonesuch"]),
    (["--token_type", "char", "--text", "{}/empty"], ["no text to make tokens from"]),
)
def test_user_errors_name_the_option(options, messages, text, tmp_path, capsys):
    (tmp_path / "empty").write_text("a\nb\n")
    with command_refused(capsys, *messages):
        make(text, *(option.format(tmp_path) for option in options))


TRAINING = """
encoder: hf_whisper
decoder: whisper_medusa
decoder_conf: {num_blocks: 1, max_target_positions: 12}
preprocessor: whisper
preprocessor_conf: {language: en}
"""


def make_whisper(folder, model, token_type) -> list[str]:
    options = ["--whisper_model", str(model), "--token_type", token_type]
    options += ["--token_list", str(folder / "tokens.txt"), "--tokenizer", str(folder / "own")]
    stage.main(["whisper_tokens", *options])
    return (folder / "tokens.txt").read_text("utf-8").split("\n")[:-1]


@cases(
    ("openai/whisper-tiny.en", "whisper_en", 51864, 0),
    ("openai/whisper-large-v2", "whisper_multilingual", 51865, 99),
    ("openai/whisper-large-v3-turbo", "whisper_multilingual", 51866, 100),
)
def test_openais_names_need_no_network(model, token_type, count, languages, tmp_path):
    tokens = make_whisper(tmp_path, model, token_type)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "own")
    assert len(tokens) == count
    assert len(read_whisper_tokens(tokenizer).languages) == languages
    for text in (" Hello, world.", " Ça va?", "<|startoftranscript|>"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert [tokens[number] for number in ids] == tokenizer.tokenize(text)


def test_a_local_model_uses_the_tokenizer_of_its_folder(tmp_path):
    model = save_tiny_whisper(tmp_path / "model", vocab_size=51866, num_mel_bins=128)
    assert len(make_whisper(tmp_path, model, "whisper_multilingual")) == 51866
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "own")
    tokenizer.add_tokens(["<mine>"])
    tokenizer.save_pretrained(tmp_path / "larger")
    larger = save_tiny_whisper(tmp_path / "larger", vocab_size=51865)
    with pytest.raises(SystemExit):  # more tokens than the model has
        make_whisper(tmp_path, larger, "whisper_multilingual")


@cases(
    ("openai/whisper-base", "whisper_en", "needs whisper_multilingual"),
    ("openai/whisper-base.en", "whisper_multilingual", "needs whisper_en"),
    ("./nowhere", "whisper_en", "'./nowhere' has no config.json"),
)
def test_unusable_whisper_models_are_refused(model, token_type, message, tmp_path, capsys):
    with command_refused(capsys, message):
        make_whisper(tmp_path, model, token_type)


@pytest.fixture
def training(tmp_path) -> list[str]:
    """Options of a training with Whisper's tokens."""
    make_whisper(tmp_path, "openai/whisper-tiny", "whisper_multilingual")
    (tmp_path / "train.yaml").write_text(TRAINING)
    tokens = ["--bpemodel", f"{tmp_path}/own", "--token_list", f"{tmp_path}/tokens.txt"]
    return ["--config", f"{tmp_path}/train.yaml", "--token_type", "hugging_face", *tokens]


def test_shapes_are_samples_and_labels(training, tmp_path, capsys):
    texts = {"a": "one", "b": "one two", "c": " ".join(["seven"] * 30)}
    lengths = {key: str(16000 + number) for number, key in enumerate(texts)}
    tables = {"wav.scp": dict.fromkeys(texts, "x.wav"), "utt2spk": dict.fromkeys(texts, "s")}
    tables |= {"text": texts, "utt2num_samples": lengths}
    for name in ("train", "dev"):
        (tmp_path / name).mkdir()
        write_dump_dir(tmp_path / name, tables)
    write_table(tmp_path / "utt2lang", {"b": "fr"})
    stats = tmp_path / "stats"
    folders = ["--train_dir", f"{tmp_path}/train", "--valid_dir", f"{tmp_path}/dev"]
    languages = ["--preprocessor_conf", f"utt2lang={tmp_path}/utt2lang"]
    folders += ["--output_dir", str(stats)]
    stage.main(["collect_shapes", *folders, "--", *training, *languages])
    # Language, task, no timestamps, then the words, each of which is a token; the third is longer
    # than the decoder.
    for part in ("train", "valid"):
        assert read_table(stats / part / "speech_shape") == {"a": "16000", "b": "16001"}
        shapes = read_table(stats / part / "text_shape.hugging_face")
        assert shapes == {"a": "4,51865", "b": "5,51865"}
        assert read_table(stats / part / "long_texts") == {"c": "33"}
    assert capsys.readouterr().out.count("longer than the decoder's 11 tokens") == 2


def test_decoding_needs_no_languages_of_the_training_set(training):
    command = [*training, "--preprocessor_conf", "utt2lang=gone"]
    args = MedusaASRTask.get_parser().parse_args(command)
    assert_refused("gone: cannot be read", MedusaASRTask.build_preprocess_fn, args, False)
    assert build_preprocess(args)("a", {"text": "one"})["text"].size == 4


def test_symbols_are_a_file_or_a_list_as_in_espnet(text, tmp_path, capsys):
    options = ["--token_type", "bpe", "--nbpe", "20", "--non_linguistic_symbols"]
    tokens = make(text, *options, "<a>,<b>")
    assert {"<a>", "<b>"} <= {*tokens}
    assert "<a>" in make(text, *options, "<a>")
    with command_refused(capsys, "local/nlsyms.txt: no such file", "such as '<noise>,<laugh>'"):
        make(text, *options, "local/nlsyms.txt")


def test_folders_of_tokens_may_have_commas(text, tmp_path):
    expected = make(text, "--token_type", "bpe", "--nbpe", "18")
    folder = tmp_path / "a,b c"
    folder.mkdir()
    shutil.copy(text, folder)
    assert make(folder / "text", "--token_type", "bpe", "--nbpe", "18") == expected
    models = [path / "list" / "bpe.model" for path in (tmp_path, folder)]
    one, two = (sentencepiece.SentencePieceProcessor(model_file=str(path)) for path in models)
    assert one.encode("three four", out_type=int) == two.encode("three four", out_type=int)


def test_texts_are_joined_with_all_lines(text, tmp_path):
    (tmp_path / "more").write_text("a one more\ne\nz last\n")
    output = tmp_path / "joined"
    stage.main(["join_texts", str(text), f"{tmp_path}/more", str(text), "--output", str(output)])
    joined = read_table(output)
    assert joined["a"] == "one two three" and joined["a-2"] == "one more" and joined["z"] == "last"
    assert joined["a-3"] == joined["a"] and len(joined) == 3 + 2 + 3


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_white_space_makes_no_tokens(kind, text):
    expected = make(text, "--token_type", kind, "--nbpe", "18")
    for space in ("  ", "\t", "\f", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}"):
        text.write_text(TEXT.replace("one ", f"one{space}"))
        assert make(text, "--token_type", kind, "--nbpe", "18") == expected


def test_labels_of_training_join_white_space(training):
    args = MedusaASRTask.get_parser().parse_args(training)
    preprocess = build_preprocess(args)
    labels = [preprocess("a", {"text": text})["text"] for text in ("one two", "one \t\u3000two ")]
    assert labels[0].tolist() == labels[1].tolist()
