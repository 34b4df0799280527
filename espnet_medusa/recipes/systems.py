"""The systems of a recipe: their names define their training.

`<kind>` is trained by conf/train_<kind>.yaml from the base model. `<kind>_<N>heads` has N heads;
`<kind>_<K>` has K - 1 heads, for at most K tokens per decoder call. `<kind>_<K>_<stage>` is trained
by conf/train_<kind>_<stage>.yaml from `<kind>_<K>`. Any name may end in `_seed<S>`.
"""

import re
import reprlib
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import read_config

_NAME = re.compile(
    r"(?P<kind>.+?)(?:_(?P<count>\d+)(?P<heads>heads)?(?:_(?P<stage>[a-z]+))?)?"
    r"(?:_seed(?P<seed>\d+))?"
)


@dataclass(frozen=True)
class System:
    name: str  # its experiment is `<exp_dir>/asr_<name>`
    config: Path  # training configuration
    checkpoint: str  # file name of the weights for decoding
    start: str = ""  # file of the initial weights; empty: random
    options: str = ""  # more training options


def plan_systems(
    base: str,
    heads: list[str],
    conf_dir: Path,
    exp_dir: Path,
    base_model: str = "",
    heads_model: str = "",
    base_start: str = "",
) -> list[System]:
    """Return the base and the systems with heads, in the order of their training.

    Raises InputError if a file is missing, a configuration selects no checkpoint, or a system has
    0 heads.

    Args:
        base_model, heads_model: Checkpoints; empty: those that the configurations select.
        base_start: Initial weights of the base, in ESPnet's ``init_param`` form; empty: random.
    """
    first = _system(base, base, conf_dir, base_model, start=base_start)
    exists = (exp_dir / f"asr_{base}" / first.checkpoint).is_file()
    file = base_start.partition(":")[0]
    if file and not exists and not Path(file).is_file():
        raise InputError(
            f"--base_start {base_start}: no such file; train that model first (its recipe up to "
            "stage 11), or leave the option empty and let the base train longer"
        )
    return [first] + [_with_heads(name, first, conf_dir, exp_dir, heads_model) for name in heads]


def _with_heads(name: str, base: System, conf_dir: Path, exp_dir: Path, chosen: str) -> System:
    parts = _NAME.fullmatch(name)
    kind, start, options = parts["kind"], base, []
    if parts["seed"]:
        options.append(f"--seed {parts['seed']}")
    if parts["count"]:
        num_heads = int(parts["count"]) - (0 if parts["heads"] else 1)
        if num_heads < 1:
            raise InputError(f"system {name}: has no heads; {kind}_2 or {kind}_1heads has one")
        options.append(f"--decoder_conf heads_conf.num_heads={num_heads}")
    if parts["stage"]:
        start = _system(name[: parts.start("stage") - 1], kind, conf_dir, chosen)
        kind = f"{kind}_{parts['stage']}"
    return _system(
        name, kind, conf_dir, chosen,
        start=f"{exp_dir}/asr_{start.name}/{start.checkpoint}", options=" ".join(options),
    )  # fmt: skip


def _system(name: str, kind: str, conf_dir: Path, chosen: str, **more: str) -> System:
    config = conf_dir / f"train_{kind}.yaml"
    if not config.is_file():
        raise InputError(f"system {name}: no {config}")
    return System(name, config, chosen or best_checkpoint(config), **more)


def best_checkpoint(config: Path) -> str:
    """Return the averaged checkpoint by the config's first criterion; InputError if it has none."""
    criteria = read_config(config, "give a training configuration").get("best_model_criterion")
    if not criteria:
        raise InputError(f"{config}: no best_model_criterion; name the checkpoint to decode with")
    try:
        part, statistic, _ = criteria[0]
    except (TypeError, ValueError, LookupError) as error:
        allowed = f"{reprlib.repr(criteria)}; allowed: lists such as [valid, acc, max]"
        raise InputError(f"{config}: best_model_criterion: {allowed}") from error
    return f"{part}.{statistic}.ave.pth"
