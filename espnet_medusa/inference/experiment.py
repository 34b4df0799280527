"""Open trained models: from an experiment's files, or a pretrained Whisper built in memory."""

import logging
import os
import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from espnet2.bin import asr_inference
from espnet2.text.hugging_face_token_id_converter import HuggingFaceTokenIDConverter
from torch.overrides import TorchFunctionMode

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.checkpoint import check_shapes, is_zip, load_weights
from espnet_medusa.data.files.mapped_weights import MappedWeight
from espnet_medusa.data.files.token_list import read_token_list
from espnet_medusa.data.options import read_config
from espnet_medusa.data.vocabulary.vocabulary import Vocabulary
from espnet_medusa.inference.convert.attach_heads import AUTO, SHIPPED, attach_heads
from espnet_medusa.inference.convert.checkpoint import PromptOptions
from espnet_medusa.inference.convert.experiment import CONFIG, training_config, training_prompt
from espnet_medusa.inference.convert.read_whisper import read_whisper
from espnet_medusa.inference.whisper_model import build_whisper_model, can_build_without_task
from espnet_medusa.networks.multi_token_decoder import STATISTICS
from espnet_medusa.networks.tokenizers import hugging_face_vocabulary, token_list_vocabulary
from espnet_medusa.networks.whisper.text import TextOptions
from espnet_medusa.networks.whisper.tokens import add_timestamps, load_tokenizer

logger = logging.getLogger(__name__)

CHECKPOINTS = (  # file names of weights; the first one that exists is used
    "model.pth", "valid.acc.ave.pth", "valid.acc_heads.ave.pth", "valid.loss.ave.pth",
    "valid.acc.best.pth", "valid.loss.best.pth",
)  # fmt: skip

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class TrainedModel:
    asr_model: torch.nn.Module  # ESPnet's module with its weights
    train_args: Namespace  # the experiment's config
    tokenizer: Any = None  # Hugging Face tokenizer; None: the one that the config names

    def vocabulary(self) -> Vocabulary:
        """Return the text of each token; raise InputError for an unsupported tokenizer."""
        if self.tokenizer is not None:
            return hugging_face_vocabulary(self.tokenizer)
        args = self.train_args
        return token_list_vocabulary(self.asr_model.token_list, args.token_type, args.bpemodel)

    @property
    def whisper_labels(self) -> PromptOptions | None:
        """Language and task of its training labels; None: labels without Whisper's prompt."""
        return training_prompt(vars(self.train_args))


def read_model(
    config: Path | str, model_file: Path | str, device: str, mapped: bool = False
) -> TrainedModel:
    """Read an experiment's ``config.yaml`` and weights.

    Args:
        mapped: Whether to memory-map the weights' file; the file must then not change.

    Raises:
        InputError: A file is missing, the weights could run code, the config has unknown options,
            or weights and config do not fit each other.
    """
    weights = load_weights(Path(model_file), mapped)
    values = read_config(Path(config), "give the config of an ASR model")
    args = Namespace(**find_own_files(values, Path(config).parent))
    try:
        model = build_asr_model(args, device)
    except (AttributeError, TypeError) as error:
        raise InputError(f"{config}: {error}; give the config of an ASR model") from error
    put_weights(weights, model, model_file, mapped)
    return TrainedModel(model, args)


def build_asr_model(args: Namespace, device: str) -> torch.nn.Module:
    """Build the model of a config as ESPnet's task does, but without initializing its weights.

    The task is slow to import; a Whisper without CTC does not need it.
    """
    with NoInitialization():
        if can_build_without_task(args):
            return build_whisper_model(args).to(device)
        from espnet2.tasks.abs_task import create_adapter
        from espnet2.tasks.asr import ASRTask

        model = ASRTask.build_model(args).to(device)
        if getattr(args, "use_adapter", False):
            create_adapter(model, args.adapter, args.adapter_conf)
        return model


def find_own_files(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Replace paths of missing files by those in the experiment's ``folder``, if they exist there.

    Such paths are relative to the folder where training ran, or from before the experiment moved:
    ``exp/base/tokenizer`` becomes ``folder/tokenizer``.
    """
    resolved = dict(config)
    for name, value in config.items():
        if isinstance(value, Mapping):
            resolved[name] = find_own_files(value, folder)
        elif isinstance(value, str) and "/" in value and not os.path.exists(value):
            parts = Path(value).parts
            ends = (folder.joinpath(*parts[start:]) for start in range(len(parts)))
            if ".." not in parts:
                resolved[name] = next((str(path) for path in ends if os.path.exists(path)), value)
    return resolved


def open_whisper_model(
    whisper_model: str, device: str, heads: str = AUTO, shipped: Path = SHIPPED
) -> TrainedModel:
    """Build the ESPnet model of a pretrained Whisper in memory; arguments as ``attach_heads``.

    Raise InputError if there is no such Whisper, or the heads cannot be attached.
    """
    checkpoint, message = attach_heads(read_whisper(whisper_model, TextOptions()), heads, shipped)
    if message is not None:
        logger.info(message)
    # ESPnet's preprocessor does not change audio, and would need a path of the tokenizer.
    config = training_config(checkpoint) | {"use_preprocessor": False}
    args = Namespace(**config | {"bpemodel": checkpoint.name})
    weights, tokenizer = dict(checkpoint.weights), checkpoint.text.tokenizer
    del checkpoint
    for name, weight in weights.items():
        weights[name] = weight.clone()  # the file is memory-mapped and could change later
    model = build_asr_model(args, device)
    put_weights(weights, model, whisper_model)
    return TrainedModel(model, args, tokenizer)


_construction = threading.Lock()


@contextmanager
def patch_espnet_loading(trained: TrainedModel) -> Iterator[None]:
    """Let ESPnet's ``Speech2Text`` use a model in memory: its constructor only takes files.

    Within the context, the functions of its module that open model and tokenizer are replaced.
    Whisper's tokenizer opens faster than in ESPnet.
    """
    model, args = trained.asr_model, trained.train_args
    task = SimpleNamespace(build_model_from_file=lambda *files: (model, args))

    def make_converter(model_name_or_path: str) -> HuggingFaceTokenIDConverter:
        converter = object.__new__(HuggingFaceTokenIDConverter)
        converter.tokenizer = trained.tokenizer or load_tokenizer(model_name_or_path)
        add_timestamps(converter.tokenizer, len(model.token_list))
        return converter

    replaced = {"ASRTask": task, "HuggingFaceTokenIDConverter": make_converter}
    with _construction, mock.patch.multiple(asr_inference, **replaced):
        yield


@contextmanager
def language_model_errors(
    options: Mapping[str, Any], model_file: Path | str | None = None
) -> Iterator[None]:
    """Raise ESPnet's errors about a model's files as an InputError of one line.

    Refuse weights of the language model, or of the main model (``model_file``), that could run
    code.
    """
    config, weights = options.get("lm_train_config"), options.get("lm_file")
    for file in filter(None, (model_file, weights)):
        load_weights(Path(file), mapped=True)
    try:
        yield
    except TypeError as error:
        raise InputError(f"{config or 'options'}: {error}") from error
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        loading, reason, *_ = map(str.strip, str(error).splitlines())
        files = f"{weights}: does not fit {config}"
        if "LanguageModel" not in loading:
            files = f"{model_file}: does not fit its config"
        raise InputError(f"{files}: {reason}; use the config of its training") from error


def check_language_model(options: Mapping[str, Any], token_list: Sequence[str]) -> None:
    """Raise InputError if the language model's tokens are not those of the main model.

    Its scores are added by token id, so another list of the same size would be wrong, too.
    """
    config, weights = options.get("lm_train_config"), options.get("lm_file")
    if weights is None and config is None:
        return
    config = Path(config or Path(weights).parent / CONFIG)
    tokens = read_config(config, "give the config of its training").get("token_list")
    if isinstance(tokens, str):
        tokens = read_token_list(Path(tokens))
    if tokens is None or list(tokens) == list(token_list):
        return
    pairs = enumerate(zip_longest(tokens, token_list))
    place, (theirs, ours) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
    counts = f"{len(tokens)} tokens, the model {len(token_list)}"
    raise InputError(
        f"lm_train_config: {config}: has {counts}, and token {place} is {theirs!r} instead of "
        f"{ours!r}; train the language model with the model's token list"
    )


def find_experiment(
    name: str | Path, model_file: str | Path | None, option: str
) -> tuple[Path, Path] | None:
    """Return config and weights of the model that ``option`` names; None: no experiment.

    Raise InputError if a ``.yaml`` file or a folder's weights are missing, or if ``model_file`` is
    given without an experiment.
    """
    path = Path(os.path.expanduser(name))
    config = path if path.suffix in (".yaml", ".yml") else path / CONFIG
    if config.is_file():
        return config, Path(model_file or find_weights(config.parent, option))
    if config == path:
        raise InputError(f"{option}: {name}: no such file; correct the path")
    if model_file is not None:
        allowed = f"allowed with an experiment; '{name}' has no {CONFIG}"
        raise InputError(f"{option}_file: {model_file}; {allowed}")
    return None


def find_weights(folder: Path, option: str) -> Path:
    """Return the path of the weights in an experiment's folder; ``option`` is for error messages.

    Raise InputError if no file has one of the names of ``CHECKPOINTS``.
    """
    for name in CHECKPOINTS:
        if (folder / name).is_file():
            return folder / name
    others = ", ".join(sorted(path.name for path in folder.glob("*.pth"))) or "none"
    raise InputError(
        f"{option}: {folder}: no weights of a usual name; give {option}_file; .pth files there: "
        f"{others}"
    )


class NoInitialization(TorchFunctionMode):
    """A context in which ``torch.nn.init`` does nothing, as the weights are loaded afterwards."""

    # Compared by name: transformers has copies of these functions, and tensors have such methods.
    NAMES = frozenset(name for name in vars(torch.nn.init) if name.strip("_") == name[:-1])

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__name__", None) in self.NAMES:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def put_weights(
    weights: Weights, model: torch.nn.Module, model_file: Path | str, mapped: bool = False
) -> None:
    """Load weights into a model, without copying those that have its type and device.

    With ``mapped``, ``load_weights`` has mapped the file; parameters become ``MappedWeight``.
    Statistics of training may be missing: heads of other projects have none. Raise InputError with
    the first differences if names or shapes differ.
    """
    state = model.state_dict()
    optional = {name for name in state if name.endswith(STATISTICS)}
    expected = {name: state[name] for name in state if name in weights or name not in optional}
    check_shapes(weights, expected, model_file, complete=True)
    mapped = mapped and is_zip(Path(model_file))
    parameters = dict(model.named_parameters(remove_duplicate=False)) if mapped else {}
    converted = {}
    for name, weight in weights.items():
        if name in parameters and weight.dim() > 1:
            converted[name] = MappedWeight(weight, parameters[name].requires_grad)
            converted[name].mapped = weight
        else:
            converted[name] = weight.to(state[name], copy=mapped)
    model.load_state_dict(converted, strict=False, assign=True)
