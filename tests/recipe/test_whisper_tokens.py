"""Stages 5 and 10 with Whisper's tokens: tokenizer folder, token list, shapes of training."""

import pytest
from tiny_whisper import save_tiny_whisper
from transformers import AutoTokenizer

from espnet_medusa import stages
from espnet_medusa.inference.reader import build_preprocess
from espnet_medusa.kaldi.dump_dir import DumpTables
from espnet_medusa.kaldi.table import read_table, write_table
from espnet_medusa.task import MedusaASRTask
from espnet_medusa.whisper.tokens import read_whisper_tokens

TRAINING = """
encoder: hf_whisper
decoder: whisper_medusa
decoder_conf: {num_blocks: 1, max_target_positions: 12}
preprocessor: whisper
preprocessor_conf: {language: en}
"""


def make(folder, model, token_type) -> list[str]:
    options = ["--whisper_model", str(model), "--token_type", token_type]
    options += ["--token_list", str(folder / "tokens.txt"), "--tokenizer", str(folder / "own")]
    stages.main(["whisper_tokens", *options])
    return (folder / "tokens.txt").read_text("utf-8").split("\n")[:-1]


@pytest.mark.parametrize(
    ("model", "token_type", "count", "languages"),
    [
        ("openai/whisper-tiny.en", "whisper_en", 51864, 0),
        ("openai/whisper-large-v2", "whisper_multilingual", 51865, 99),
        ("openai/whisper-large-v3-turbo", "whisper_multilingual", 51866, 100),
    ],
)
def test_openais_names_need_no_network(tmp_path, model, token_type, count, languages):
    tokens = make(tmp_path, model, token_type)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "own")
    assert len(tokens) == count
    assert len(read_whisper_tokens(tokenizer).languages) == languages
    for text in (" Hello, world.", " Ça va?", "<|startoftranscript|>"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert [tokens[number] for number in ids] == tokenizer.tokenize(text)


def test_a_local_model_uses_the_tokenizer_of_its_folder(tmp_path):
    model = save_tiny_whisper(tmp_path / "model", vocab_size=51866, num_mel_bins=128)
    assert len(make(tmp_path, model, "whisper_multilingual")) == 51866
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "own")
    tokenizer.add_tokens(["<mine>"])
    tokenizer.save_pretrained(tmp_path / "larger")
    larger = save_tiny_whisper(tmp_path / "larger", vocab_size=51865)
    with pytest.raises(SystemExit):  # more tokens than the model has
        make(tmp_path, larger, "whisper_multilingual")


@pytest.mark.parametrize(
    ("model", "token_type", "message"),
    [
        ("openai/whisper-base", "whisper_en", "needs whisper_multilingual"),
        ("openai/whisper-base.en", "whisper_multilingual", "needs whisper_en"),
        ("./nowhere", "whisper_en", "'./nowhere' has no config.json"),
    ],
)
def test_unusable_models_are_refused(tmp_path, capsys, model, token_type, message):
    with pytest.raises(SystemExit) as caught:
        make(tmp_path, model, token_type)
    assert caught.value.code == 1
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1 and message in shown[0]


def test_shapes_are_samples_and_labels(tmp_path, capsys):
    make(tmp_path, "openai/whisper-tiny", "whisper_multilingual")
    (tmp_path / "train.yaml").write_text(TRAINING)
    texts = {"a": "one", "b": "one two", "c": " ".join(["seven"] * 30)}
    lengths = {key: 16000 + number for number, key in enumerate(texts)}
    for name in ("train", "dev"):
        audio, speakers = dict.fromkeys(texts, "x.wav"), dict.fromkeys(texts, "s")
        tables = DumpTables(audio, speakers, texts, lengths)
        (tmp_path / name).mkdir()
        tables.write(tmp_path / name)
    write_table(tmp_path / "utt2lang", {"b": "fr"})
    stats = tmp_path / "stats"
    stages.main(["collect_shapes",
         "--train_dir", str(tmp_path / "train"), "--valid_dir", str(tmp_path / "dev"),
         "--output_dir", str(stats), "--", "--config", str(tmp_path / "train.yaml"),
         "--token_type", "hugging_face", "--bpemodel", str(tmp_path / "own"),
         "--token_list", str(tmp_path / "tokens.txt"),
         "--preprocessor_conf", f"utt2lang={tmp_path / 'utt2lang'}"]
    )  # fmt: skip
    # Language, task, no timestamps, then the words, each of which is a token; the third is longer
    # than the decoder.
    for part in ("train", "valid"):
        assert read_table(stats / part / "speech_shape") == {"a": "16000", "b": "16001"}
        shapes = read_table(stats / part / "text_shape.hugging_face")
        assert shapes == {"a": "4,51865", "b": "5,51865"}
        assert read_table(stats / part / "long_texts") == {"c": "33"}
    assert capsys.readouterr().out.count("longer than the decoder's 11 tokens") == 2


def test_decoding_needs_no_languages_of_the_training_set(tmp_path):
    make(tmp_path, "openai/whisper-tiny", "whisper_multilingual")
    (tmp_path / "train.yaml").write_text(TRAINING)
    args = MedusaASRTask.get_parser().parse_args(
        ["--config", str(tmp_path / "train.yaml"), "--token_type", "hugging_face",
         "--bpemodel", str(tmp_path / "own"), "--token_list", str(tmp_path / "tokens.txt"),
         "--preprocessor_conf", "utt2lang=gone"]
    )  # fmt: skip
    with pytest.raises(ValueError, match="gone: cannot be read"):
        MedusaASRTask.build_preprocess_fn(args, False)
    assert build_preprocess(args)("a", {"text": "one"})["text"].size == 4
