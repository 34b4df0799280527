"""Python with the plugin registered: ``espnet-medusa-python -m espnet2.bin.asr_train ...``.

For an unmodified ESPnet recipe: ``asr.sh --python espnet-medusa-python``. Registration happens at
import, so processes that ESPnet spawns from here have it, too.
"""

import os
import runpy
import sys

import espnet_medusa

espnet_medusa.register()


def main(cmd: list[str] | None = None) -> None:
    """Run ``-m module``, ``-c code`` or a script as python would; other calls go to python."""
    arguments = list(sys.argv[1:] if cmd is None else cmd)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-m", "-c")):
        os.execv(sys.executable, [sys.executable, *arguments])
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        # Without alter_sys: __main__ stays this file, which spawned processes import.
        runpy.run_module(arguments[1], run_name="__main__")
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
