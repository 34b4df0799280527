"""Training configs of recipes and of experiments."""

from espnet_medusa.errors import InputError
from espnet_medusa.model.heads import HeadOptions
from espnet_medusa.model.whisper_decoder import DecoderOptions
from espnet_medusa.model.whisper_encoder import encoder_options
from espnet_medusa.options import build_options, read_config
from espnet_medusa.recipe.systems import best_checkpoint
from espnet_medusa.search.options import read_draft_conf
from espnet_medusa.vocabulary.tokenizers import open_vocabulary
from fuzz.decode_yaml import MARKS
from fuzz.reader import Reader, write_scratch


def read(data: bytes) -> None:
    """Read every part that this package reads."""
    path = write_scratch("train.yaml", data)
    config = read_config(path, "mend it")
    refusals = [part for part in PARTS if _is_refused(part, path, config)]
    if len(refusals) == len(PARTS):
        raise InputError("nothing was read")


def _is_refused(part, path, config) -> bool:
    try:
        part(path, config)
    except InputError as error:
        assert "\n" not in str(error)
        return True
    return False


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


PARTS = (_encoder, _decoder, _checkpoint, _vocabulary)


def seeds() -> list[bytes]:
    """Return a recipe's config and one written by training."""
    return [
        b"encoder_conf: {whisper_model: a}\ndecoder_conf:\n    heads: recurrent\n"
        b"    heads_conf: {num_heads: 4}\n    draft_conf: {greedy: {draft_depth: 2}}\n"
        b"best_model_criterion:\n-   - valid\n    - acc\n    - max\n",
        b"token_list:\n- <blank>\n- 'a'\n- b\n- <sos/eos>\ntoken_type: char\nbpemodel: null\n"
        b"encoder_conf: {window: whisper, subsampling: 2}\n",
    ]


READER = Reader(
    "training_yaml", read, seeds, (*MARKS, b"token_type: ", b"word", b"null"), max_bytes=512
)
