"""ESPnet experiment folders: config.yaml, weights, tokenizer, decode configs."""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
import yaml

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.checkpoint import check_shapes, load_weights
from espnet_medusa.data.files.token_list import write_token_list
from espnet_medusa.data.files.yaml_text import DUMPER
from espnet_medusa.data.options import build_options, read_config
from espnet_medusa.inference.convert.checkpoint import (
    GENERATION,
    RECORDS,
    Architecture,
    Checkpoint,
    CtcBranch,
    PromptOptions,
)
from espnet_medusa.inference.convert.decode_configs import decode_configs
from espnet_medusa.inference.convert.names import COUNTS, MOMENTS
from espnet_medusa.inference.convert.special_ids import ALIGNMENT, LISTS, suppressed_ids
from espnet_medusa.inference.convert.write_whisper import write_json
from espnet_medusa.networks.heads import NO_HEADS, HeadOptions
from espnet_medusa.networks.whisper.pretrained import open_whisper
from espnet_medusa.networks.whisper.sizes import (
    DECODER_SIZES,
    ENCODER_SIZES,
    config_of_options,
    options_of_config,
)
from espnet_medusa.networks.whisper.text import (
    TOKENIZER_FILES,
    Text,
    list_tokens,
    load_safely,
    tokenizer_of_type,
)
from espnet_medusa.networks.whisper.token_types import WHISPER_PREPROCESSOR, WHISPER_TYPES
from espnet_medusa.networks.whisper.tokens import TRANSCRIBE, default_symbols
from espnet_medusa.networks.whisper.weight_files import read_json
from espnet_medusa.networks.whisper_decoder import DecoderOptions
from espnet_medusa.networks.whisper_encoder import EncoderOptions, encoder_options

logger = logging.getLogger(__name__)

CONFIG, MODEL, TOKENS = "config.yaml", "model.pth", "tokens.txt"
TOKENIZER, SOURCE, DECODE = "tokenizer", "source", "conf"
KINDS = {"encoder": "hf_whisper", "decoder": "whisper_medusa"}
CTC = "ctc."  # tensors of the CTC branch, which no other format has
CTC_CONF = ("ctc_weight", "ctc_units", "ctc_block", "ctc_block_conf", "sym_blank")
CTC_WEIGHT = 0.5  # ESPnet's default


def write_experiment(checkpoint: Checkpoint, folder: Path, final: Path) -> None:
    """Write an experiment that can be decoded and trained further.

    ``final`` is the path to which ``folder`` is renamed later. Raises InputError if the model does
    not have the language or task.
    """
    config = training_config(checkpoint)
    config |= {"bpemodel": str(final / TOKENIZER), "output_dir": str(final)}
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.text.save(folder / TOKENIZER)
    write_token_list(folder / TOKENS, checkpoint.text.tokens)
    write_yaml(folder / CONFIG, config)
    weights = {**checkpoint.weights, **(checkpoint.ctc.weights if checkpoint.ctc else {})}
    torch.save({name: compact(value) for name, value in weights.items()}, folder / MODEL)
    for name, options in decode_configs(checkpoint).items():
        write_yaml(folder / DECODE / f"decode_{name}.yaml", options)
    for name, fields in checkpoint.records.items():
        write_json(folder / SOURCE / name, fields)


def write_yaml(path: Path, fields: Mapping) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.dump(dict(fields), Dumper=DUMPER, sort_keys=False, allow_unicode=True)
    path.write_text(text, encoding="utf-8")


def training_config(checkpoint: Checkpoint) -> dict:
    """Return ESPnet's training config without paths; raise InputError for a wrong prompt."""
    from espnet2.tasks.asr import ASRTask  # Slow to import.

    config = vars(ASRTask.get_parser().parse_args([]))
    config = {name: config[name] for name in config if name not in ASRTask.exclude_opts()}
    architecture, text = checkpoint.architecture, checkpoint.text
    encoder_conf = options_of_config(architecture.whisper, ENCODER_SIZES)
    decoder_conf = options_of_config(architecture.whisper, DECODER_SIZES)
    pairs = checkpoint.records.get(GENERATION, {}).get(ALIGNMENT)
    if pairs:
        decoder_conf["alignment_heads"] = [[*pair] for pair in pairs]
    decoder_conf |= _decoding_lists(checkpoint)
    if architecture.heads != NO_HEADS:
        decoder_conf |= {
            "heads": architecture.heads,
            "heads_conf": asdict(architecture.head_options),
            "keep_original_last_layer": architecture.original_last_layer,
            "draft_conf": dict(checkpoint.draft_conf),
        }
    config |= {
        **KINDS,
        "encoder_conf": encoder_conf | {"window": checkpoint.window},
        "decoder_conf": decoder_conf,
        "model": "medusa",
        "model_conf": {
            "ctc_weight": 0.0,
            "sym_sos": text.tokens[text.start],
            "sym_eos": text.tokens[text.end],
            "extract_feats_in_collect_stats": False,
        },
        "input_size": 1,
        "frontend": None,
        "normalize": None,
        "token_list": [*text.tokens],
        "token_type": "hugging_face",
    }
    if checkpoint.ctc is not None:
        config["model_conf"] |= checkpoint.ctc.model_conf
        config["ctc_conf"] = {**checkpoint.ctc.ctc_conf}
    whisper = text.whisper
    if whisper is not None:
        prompt = checkpoint.prompt
        try:
            whisper.prompt(prompt.language, prompt.task)
        except InputError as error:
            raise InputError(f"{checkpoint.name}: {error}; give --language and --task") from error
        config |= {"preprocessor": "whisper", "preprocessor_conf": asdict(prompt)}
    return config


def _decoding_lists(checkpoint: Checkpoint) -> dict[str, list[int]]:
    """Return lists of tokens for ``decoder_conf``, without those that are Whisper's own."""
    whisper, lists = checkpoint.text.whisper, suppressed_ids(checkpoint.records, checkpoint.text)
    if whisper is not None:
        usual = dict(zip(LISTS, (whisper.suppressed, whisper.begin_suppressed), strict=True))
        lists = {name: ids for name, ids in lists.items() if sorted({*ids}) != usual[name]}
    if checkpoint.text.other_ends:
        lists["end_tokens"] = [*checkpoint.text.other_ends]
    return lists


def training_prompt(config: Mapping) -> PromptOptions | None:
    """Return language and task of the training labels; None: labels without Whisper's prompt."""
    conf = config.get("preprocessor_conf") or {}
    if config.get("preprocessor") == WHISPER_PREPROCESSOR:
        return PromptOptions(conf.get("language", "en"), conf.get("task", TRANSCRIBE))
    if config.get("token_type") in WHISPER_TYPES:  # ESPnet's own recipes
        language, task = conf.get("whisper_language"), conf.get("whisper_task")
        return PromptOptions(language or "en", task or TRANSCRIBE)
    return None


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in 16 bits if it has the same values, as those of published Whispers.

    Copy it if it is part of a larger storage: torch.save would write all of it.
    """
    for kind in (torch.float16, torch.bfloat16) if tensor.dtype == torch.float32 else ():
        smaller = tensor.to(kind)
        if torch.equal(smaller.float(), tensor):
            return smaller
    shares = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
    return tensor.clone() if shares else tensor


def _of_one_type(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights in float32, unless all have the same type, as other formats require."""
    floating = {name: value for name, value in weights.items() if value.is_floating_point()}
    if len({value.dtype for value in floating.values()}) > 1:
        floating = {name: value.float() for name, value in floating.items()}
    return {**weights, **floating}


def read_experiment(folder: Path, model_file: Path | None = None) -> Checkpoint:
    """Read an experiment; its weights are in ``model_file``, or in ``model.pth``.

    Raises InputError for models without hf_whisper and whisper_medusa, or parts that do not match.
    """
    config = _read_config(folder / CONFIG)
    model_file = model_file or folder / MODEL
    if not model_file.is_file():
        existing = ", ".join(sorted(path.name for path in folder.glob("*.pth"))) or "none"
        raise InputError(f"{model_file}: no such file; give --model_file; .pth files: {existing}")
    where = f"{folder / CONFIG}: encoder_conf"
    encoder = encoder_options(config.get("encoder_conf"), where)
    architecture = _architecture(config, encoder, folder / CONFIG)
    weights = _of_one_type(load_weights(model_file))
    ctc = _ctc_branch(config, weights)
    weights = {name: value for name, value in weights.items() if not name.startswith(CTC)}
    expected = architecture.tensors()
    if MOMENTS in expected:
        weights.setdefault(MOMENTS, torch.zeros(expected[MOMENTS].shape))
    if COUNTS in weights:
        expected[COUNTS] = torch.empty(architecture.whisper.vocab_size, device="meta")
    check_shapes(weights, expected, model_file, complete=True)
    text = _read_text(config, folder)
    records = {
        name: read_json(folder / SOURCE / name)
        for name in RECORDS
        if (folder / SOURCE / name).is_file()
    }
    draft_conf = (config.get("decoder_conf") or {}).get("draft_conf") or {}
    prompt = training_prompt(config) or PromptOptions()
    parts = architecture, weights, text, records, draft_conf, ctc, prompt, encoder.window_kind
    return Checkpoint(str(folder), *parts)


def _ctc_branch(config: dict, weights: Mapping[str, torch.Tensor]) -> CtcBranch | None:
    """Return the CTC branch; None if the model has none, or its weight is 0."""
    conf = config.get("model_conf") or {}
    branch = {name: value for name, value in weights.items() if name.startswith(CTC)}
    if not branch or not conf.get("ctc_weight", CTC_WEIGHT):
        return None
    chosen = {"ctc_weight": CTC_WEIGHT} | {name: conf[name] for name in CTC_CONF if name in conf}
    return CtcBranch(branch, chosen, config.get("ctc_conf") or {})


def _read_config(path: Path) -> dict:
    config = read_config(path, "give the folder of an experiment, as training left it")
    for part, kind in KINDS.items():
        if config.get(part) != kind:
            remedy = f"allowed: {kind}; other models cannot be converted"
            raise InputError(f"{path}: {part}: {config.get(part)}; {remedy}")
    tokens = config.get("token_list")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{path}: token_list has no tokens; give the one that training wrote")
    return config


def _architecture(config: dict, encoder: EncoderOptions, path: Path) -> Architecture:
    decoder = build_options(DecoderOptions, config.get("decoder_conf"), f"{path}: decoder_conf")
    heads = build_options(HeadOptions, decoder.heads_conf, f"{path}: decoder_conf.heads_conf")
    if encoder.subsampling != 2:
        raise InputError(
            f"{path}: encoder_conf.subsampling: {encoder.subsampling}; allowed: 2, as other "
            "programs compute Whisper; this model cannot be converted"
        )
    if "whisper_model" in (config.get("decoder_conf") or {}) and decoder.whisper_model:
        whisper = open_whisper(decoder.whisper_model).config
    else:
        sizes = {name: getattr(decoder, option) for option, name in DECODER_SIZES.items()}
        sizes["vocab_size"] = len(config["token_list"])
        whisper = config_of_options(encoder, ENCODER_SIZES, 0.0, **sizes)
    kind = decoder.heads if heads.num_heads > 0 else NO_HEADS
    return Architecture(whisper, kind, heads, decoder.keep_original_last_layer)


def _read_text(config: dict, folder: Path) -> Text:
    tokens, conf = tuple(config["token_list"]), config.get("model_conf") or {}
    symbols = dict(zip(("sym_sos", "sym_eos"), default_symbols(tokens), strict=True))
    symbols |= {name: conf[name] for name in symbols if name in conf}
    for name, symbol in symbols.items():
        if symbol not in tokens:
            raise InputError(f"model_conf.{name}: {symbol!r} is not in token_list; name another")
    start, end = map(tokens.index, symbols.values())
    other_ends = tuple((config.get("decoder_conf") or {}).get("end_tokens") or ())
    if config.get("token_type") in WHISPER_TYPES:
        tokenizer = tokenizer_of_type(config["token_type"], "")
        return Text(tokens, start, end, tokenizer, other_ends=other_ends)
    if config.get("token_type") != "hugging_face" or config.get("bpemodel") is None:
        return Text(tokens, start, end, other_ends=other_ends)
    # In a moved folder, config.yaml has the old path.
    moved = folder / TOKENIZER
    name = moved if moved.is_dir() else Path(config["bpemodel"])
    tokenizer = load_safely(name)
    copied = name if any((name / file).is_file() for file in TOKENIZER_FILES) else None
    list_tokens(tokenizer, len(tokens))
    return Text(tokens, start, end, tokenizer, copied, other_ends)
