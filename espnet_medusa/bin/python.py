"""Python with the plugin: ``espnet-medusa-python -m espnet2.bin.asr_train ...``.

For an unmodified ESPnet recipe: ``asr.sh --python espnet-medusa-python``. ESPnet's asr and s2t
tasks then have the plugin's classes, also in child processes, the modules of ``OURS`` run instead
of ESPnet's, and the ``espnet`` command and ``espnet.load`` decode with the plugin's searches. All
else is as in python. With ``--no-redirect`` as first option, ESPnet's modules run.
"""

import os
import re
import runpy
import sys
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from espnet_medusa.espnet.upstream.hooks import change_module

OURS = {
    f"espnet2.bin.{name}": f"espnet_medusa.bin.{name}"
    for name in (
        *("asr_train", "asr_inference", "asr_inference_streaming"),
        *("s2t_inference", "st_inference"),
        *("whisper_export_vocabulary", "hugging_face_export_vocabulary"),
    )
}
# Commands for other kinds of models, and asr.sh's option for each.
OTHER_SEARCHES = {"espnet2.bin.asr_inference_maskctc": "use_maskctc"}
OUR_NETWORKS = {"medusa", "hf_whisper", "whisper_medusa", "speech_llama", "transformer_medusa"}
NO_REDIRECT = "--no-redirect"
LONG_WITH_VALUE = "--check-hash-based-pycs"
# Options in one word: letters without a value, then one with a value: ``-um`` or ``-mmodule``.
WITH_VALUE = re.compile(r"-(\w*?)([mcWX])(.*)", re.DOTALL)


def main(cmd: list[str] | None = None) -> None:
    """Run ``-m module``, ``-c code``, ``-`` or a script like python."""
    words = list(sys.argv[1:] if cmd is None else cmd)
    no_redirect = [words.pop(0)] if words[:1] == [NO_REDIRECT] else []
    options, words = split_options(words)
    if not words:  # --version, --help, or a prompt
        os.execv(sys.executable, [sys.executable, *options])
    if options:  # options of python need a new interpreter
        again = ["-m", "espnet_medusa.bin.python", *no_redirect, *words]
        os.execv(sys.executable, [sys.executable, *options, *again])
    run(words, redirect=not no_redirect)


def split_options(words: list[str]) -> tuple[list[str], list[str]]:
    """Return Python's options, and the other words with ``-m`` or ``-c`` as a word of its own."""
    options, words = [], [*words]
    while words and words[0].startswith("-") and words[0] != "-":
        option = words.pop(0)
        match = WITH_VALUE.fullmatch(option)
        flags, letter, value = match.groups() if match else ("", "", "")
        if letter in ("m", "c"):
            start = [f"-{letter}", *([value] if value else [])]
            return options + ([f"-{flags}"] if flags else []), start + words
        options.append(option)
        if option == LONG_WITH_VALUE or (letter and not value):
            options += words[:1]
            del words[:1]
    return options, words


def run(words: list[str], redirect: bool) -> None:
    """Run a module, code or a script here; ``redirect``: replace ESPnet's modules by ``OURS``."""
    if redirect:
        change_module("espnet2.utils.pretrained", open_with_our_search)
    first, *rest = words
    script = first not in ("-m", "-c", "-")
    sys.path.insert(0, os.path.dirname(os.path.abspath(first)) if script else os.getcwd())
    if first == "-m" and rest:
        refuse_other_search(*rest)
        name = OURS.get(rest[0], rest[0]) if redirect else rest[0]
        sys.argv = [getattr(find_spec(name), "origin", None) or name, *rest[1:]]
        # Without alter_sys, __main__ stays this file, which child processes import.
        runpy.run_module(name, run_name="__main__")
    elif first in ("-m", "-c") and not rest:
        sys.exit(f"Argument expected for the {first} option")
    elif first in ("-c", "-"):
        code = sys.stdin.read() if first == "-" else rest.pop(0)
        sys.argv = [first, *rest]
        file = "<stdin>" if first == "-" else "<string>"
        exec(compile(code, file, "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        runpy.run_path(first, run_name="__main__")


def open_with_our_search(module: ModuleType) -> None:
    """Change the module that opens the models of the ``espnet`` command and ``espnet.load``."""
    build = getattr(module, "build_pretrained", None)
    if build is None:  # ESPnet 202609 and 202610 have no such function
        return

    @wraps(build)
    def build_pretrained(loader: type, model_tag: str, device: str, *words: str, **options):
        from espnet_medusa.transcription.espnet_commands import OPEN  # slow to import

        name = f"{loader.__module__}.{loader.__qualname__}"
        if name not in OPEN:
            return build(loader, model_tag, device, *words, **options)
        try:
            return OPEN[name](model_tag, device=device, **options)
        except ValueError as error:
            raise module.ModelTagError(str(error)) from error

    module.build_pretrained = build_pretrained


def refuse_other_search(module: str, *words: str) -> None:
    """Exit with one line if an ESPnet command would decode one of our models, which it cannot."""
    option, name = OTHER_SEARCHES.get(module), "--asr_train_config"
    if option is None or name not in words[:-1]:
        return
    from espnet_medusa.data.options import read_config  # slow to import

    path = Path(words[words.index(name) + 1])
    try:
        config = read_config(path, "correct the file or its path")
    except ValueError as error:
        sys.exit(f"error: {error}")
    if OUR_NETWORKS & {config.get(part) for part in ("model", "encoder", "decoder")}:
        sys.exit(f"error: {option}: true; {path} is a model of espnet_medusa; allowed: false")


if __name__ == "__main__":
    main()
