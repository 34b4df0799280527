"""An experiment's files: ESPnet's construction of the model, between checks that it lacks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from espnet_medusa.errors import InputError
from espnet_medusa.files.checkpoint import check_shapes, load_weights
from espnet_medusa.model.multi_token_decoder import TOKEN_COUNTS

CHECKPOINTS = (  # what conversion and training leave; the first that is there
    "model.pth", "valid.acc.ave.pth", "valid.acc_heads.ave.pth", "valid.loss.ave.pth",
    "valid.acc.best.pth", "valid.loss.best.pth",
)  # fmt: skip

Weights = Mapping[str, torch.Tensor]


def find_weights(folder: Path, option: str) -> Path:
    """The weights that training or a conversion left in an experiment's folder.

    Args:
        folder: Of the experiment.
        option: That names it, for messages; ``<option>_file`` names the weights.

    Raises:
        InputError: There are none, or none of a usual name.
    """
    for name in CHECKPOINTS:
        if (folder / name).is_file():
            return folder / name
    found = ", ".join(sorted(path.name for path in folder.glob("*.pth"))) or "none"
    raise InputError(
        f"{option}: {folder}: which weights? give {option}_file; .pth files there: {found}"
    )


def read_weights(model_file: Path | str | None, lm_file: Path | str | None) -> Weights:
    """Read the checkpoints safely before ESPnet reads them in a way that may run code.

    Returns:
        The model's weights.

    Raises:
        InputError: A file is missing, or holds more than weights.
    """
    if model_file is None:
        raise InputError("asr_model_file: missing; give the trained model, such as valid.pth")
    if lm_file is not None:
        load_weights(Path(lm_file))
    return load_weights(Path(model_file))


class Unwritten(TorchFunctionMode):
    """Where models are made whose weights are read: no random ones take time and memory."""

    # By name: transformers has its own of these, and tensors have some.
    NAMES = frozenset(name for name in vars(torch.nn.init) if name.strip("_") == name[:-1])

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """torch's interface."""
        kwargs = kwargs or {}
        if getattr(function, "__name__", None) in self.NAMES:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


@contextmanager
def refusing(train_config: Path | str | None, model_file: Path | str) -> Iterator[None]:
    """What ESPnet finds wrong while it builds the model becomes a line.

    Raises:
        InputError: The config has an unknown option, or does not fit the weights.
    """
    try:
        yield
    except TypeError as error:
        raise InputError(f"{train_config}: {error}") from error
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        reason = str(error).splitlines()[1].strip()
        raise InputError(
            f"{model_file}: does not fit {train_config}: {reason}; use the config and token list "
            "that it was trained with"
        ) from error


def put_weights(weights: Weights, model: torch.nn.Module, model_file: Path | str) -> None:
    """Give a model its weights: they become the model's own, where kind and device are the same.

    Counts of training tokens may be missing: heads from elsewhere have none.

    Raises:
        InputError: The checkpoint does not hold all of the model and nothing else; names the first
            differences.
    """
    state = model.state_dict()
    expected = {
        name: value
        for name, value in state.items()
        if name in weights or not name.endswith(TOKEN_COUNTS)
    }
    check_shapes(weights, expected, model_file, complete=True)
    suited = {name: weight.to(state[name]) for name, weight in weights.items()}
    model.load_state_dict(suited, strict=False, assign=True)
