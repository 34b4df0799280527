"""YAML files: decode configs, training configs and the cards of heads."""

from dataclasses import asdict, fields

import yaml

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import build_options, read_config
from espnet_medusa.decoding.search.search_options import check_options, read_draft_conf
from espnet_medusa.inference.convert.heads_card import read_card
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.networks.heads import HEAD_TYPES, HeadOptions
from espnet_medusa.networks.tokenizers import open_vocabulary
from espnet_medusa.networks.whisper_decoder import DecoderOptions
from espnet_medusa.networks.whisper_encoder import encoder_options
from espnet_medusa.recipes.systems import best_checkpoint
from fuzz.reader import fuzzed, write_scratch

NAMES = tuple(entry.name for entry in fields(DecodeOptions))
BEAM_SIZE = 5
MARKS = (
    b"&a ", b"*a", b"<<: ", b"!!int ", b"!!bool x", b"!!timestamp ", b"!!python/object:os.system ",
    b".inf", b"-.nan", b"0x", b"1:1:1", b"1e400", b"? ", b"- ", b"[", b"{", b"|\n", b"%YAML 1.1\n",
    b"---\n", b"!!binary ", b"!!set ", b"!!omap ", b"\xe2\x80\xa8",
)  # fmt: skip
CARD = {
    "base_model": "openai/whisper-tiny", "license": "mit", "training_data": {"a": "CC BY 4.0"},
    "commands": ["./run.sh"], "fingerprint": "0" * 64, "heads": "recurrent",
    "heads_conf": {"num_heads": 4, "num_layers": 1},
    "whisper": {"d_model": 8, "vocab_size": 60, "encoder_layers": 1, "decoder_layers": 2},
    "acceptance": {"data": "dev", "utterances": 2, "tokens_per_call": 2.5, "per_head": [0.7, 0.5]},
    "draft_conf": {"greedy": {"draft_depth": 2}},
}  # fmt: skip


@fuzzed(
    seeds=lambda: [
        b"search: greedy\ndraft_depth: 5\ndraft_vocab_size: 2000\n",
        b"search: beam\ndrafter: ctc\nlookahead: acceptance\npatience: 1.5\nlength_penalty: 0.5\n",
        b"search: greedy\nacceptance: typical\nmedusa_choices: [1, 2]\nsuppress_tokens: [1]\n",
        b"{search: greedy, decoder_precision: int8, ctc_entropy_threshold: 0.1, task: null}\n",
    ],
    words=(*MARKS, *(f"{name}: ".encode() for name in NAMES)),
    max_bytes=512,
)
def decode_yaml(data: bytes) -> None:
    """Compare the options of a decode config with the values that PyYAML reads."""
    config = read_config(write_scratch("decode.yaml", data), "mend it")
    options = build_options(DecodeOptions, config, "decode config")
    check_options(options, BEAM_SIZE)
    assert {*config} <= {*NAMES}
    assert asdict(options) == asdict(DecodeOptions()) | yaml.load(data.decode(), yaml.CSafeLoader)


@fuzzed(
    seeds=lambda: [f"---\n{yaml.safe_dump(CARD)}---\n# Heads\n\nOf a Whisper.\n".encode()],
    words=(*MARKS, *(name.encode() for name in HEAD_TYPES)),
)
def heads_card(data: bytes) -> None:
    """Compare fields of ``README.md``'s YAML front matter with those that PyYAML reads."""
    card = read_card(write_scratch("README.md", data).parent)
    expected = yaml.load(data.decode().split("---\n", 2)[1], yaml.CSafeLoader)
    assert card.heads in HEAD_TYPES and HeadOptions(**card.heads_conf).num_heads >= 1
    for name in ("base_model", "fingerprint", "heads", "heads_conf", "whisper", "commands"):
        assert getattr(card, name) == expected[name]
    assert card.language == (expected.get("language") or [])


def _encoder(_, config) -> None:
    options = encoder_options(config.get("encoder_conf"), "encoder_conf")
    assert str(options.subsampling) in ("2", "4")


def _decoder(_, config) -> None:
    options = build_options(DecoderOptions, config.get("decoder_conf"), "decoder_conf")
    heads = build_options(HeadOptions, options.heads_conf, "heads_conf")
    heads.check()
    read_draft_conf(options.draft_conf)
    assert type(options.num_blocks) is int and heads.num_heads >= 0


def _checkpoint(path, _) -> None:
    assert best_checkpoint(path).endswith(".ave.pth")


def _vocabulary(path, config) -> None:
    vocabulary = open_vocabulary(path)
    if isinstance(config["token_list"], list):
        assert len(vocabulary.contents) == len(config["token_list"])


@fuzzed(
    seeds=lambda: [
        b"encoder_conf: {whisper_model: a}\ndecoder_conf:\n    heads: recurrent\n"
        b"    heads_conf: {num_heads: 4}\n    draft_conf: {greedy: {draft_depth: 2}}\n"
        b"best_model_criterion:\n-   - valid\n    - acc\n    - max\n",
        b"token_list:\n- <blank>\n- 'a'\n- b\n- <sos/eos>\ntoken_type: char\nbpemodel: null\n"
        b"encoder_conf: {window: whisper, subsampling: 2}\n",
    ],
    words=(*MARKS, b"token_type: ", b"word", b"null"),
    max_bytes=512,
)
def training_yaml(data: bytes) -> None:
    """Read each part of a training config; raise InputError if all are refused."""
    path = write_scratch("train.yaml", data)
    config = read_config(path, "mend it")
    refusals = []
    for part in (_encoder, _decoder, _checkpoint, _vocabulary):
        try:
            part(path, config)
        except InputError as error:
            assert "\n" not in str(error)
            refusals.append(error)
    if len(refusals) == 4:
        raise InputError("nothing was read")
