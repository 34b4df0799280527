"""A server that forks the Python processes of recipes, which would import ESPnet for 7 s each.

Its `python3` lets a process that has imported ESPnet run `-m espnet_medusa...`, `-m espnet2...`,
`-m contestants...` and scripts in a forked child with the caller's arguments, environment, folder
and streams. It runs the real Python for all other arguments. Child processes of a forked child use
the same `python3`. All workers of xdist use the same server.
"""

import array
import atexit
import ctypes
import functools
import gc
import importlib
import io
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import uuid
import weakref
from pathlib import Path
from pkgutil import walk_packages

from first_depths import keep_first_depths
from waiting import wait_for

CLIENT = """\
#!{python} -IS
import sys, os
words = sys.argv[1:]
known = words[0].endswith(".py") if words else False
if words[:1] == ["-m"]:
    known = words[1].startswith(("espnet2.", "espnet_medusa.", "contestants."))
if not known:
    os.execv("{python}", ["{python}", *words])
import _socket, array  # the module `socket` takes longer to import than the rest
variables = [f"{{name}}={{value}}" for name, value in os.environ.items()]
request = os.fsencode("\\0".join([os.getcwd(), str(len(words)), *words, *variables]))
server = _socket.socket(_socket.AF_UNIX)
server.connect("{address}")
streams = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
server.sendmsg([len(request).to_bytes(4, "big")], streams)
server.sendall(request)
status = server.recv(1)  # none from a child that was killed
os._exit(status[0] if status else 137)
"""


@functools.cache
def environment() -> dict[str, str]:
    """Return the environment of a recipe; the first call of a test run starts the server."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)
    folder = Path(tempfile.gettempdir(), f"warm_python_{run}")
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # another worker starts it
        wait_for((folder / READY).exists)
        hold(folder / ALIVE)
    else:
        start(folder)
    places = [folder, Path(sys.executable).parent, os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(map(str, places))}


READY, ALIVE = "ready", "alive"


def start(folder: Path) -> None:
    address, client = folder / "socket", folder / "python3"
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    os.mkfifo(folder / ALIVE)
    users = os.open(folder / ALIVE, os.O_RDONLY | os.O_NONBLOCK)
    hold(folder / ALIVE)
    os.set_blocking(users, True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen(64)
        number = listening.fileno()
        command = [sys.executable, __file__, str(number), str(client)]
        subprocess.Popen(command, pass_fds=[number], stdin=users, start_new_session=True)
    os.close(users)
    (folder / READY).touch()


def hold(pipe: Path) -> None:
    """Open a pipe until this process ends; the server ends after all processes that hold it."""
    os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # without a reader an error, not a wait


def executable() -> str:
    return environment()["PATH"].split(os.pathsep)[0] + "/python3"


def serve(listening: socket.socket, client: str) -> None:
    warm_up()
    sys.executable = client
    gc.freeze()  # children do not scan these objects and so do not copy their pages
    use_huge_pages()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    users = sys.stdin.fileno()
    threading.Thread(target=end_with, args=[users, Path(client).parent], daemon=True).start()
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            answer(connection)
        connection.close()


def warm_up() -> None:
    """Import and compute what each command would otherwise import and compute again."""
    import matplotlib.pyplot as plt
    import scipy.ndimage  # noqa: F401
    import torch.utils.serialization.config  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401

    import espnet_medusa
    from espnet_medusa.networks.whisper.espnet_text import build
    from espnet_medusa.recipes.scoring.alignment import align

    for module in walk_packages(espnet_medusa.__path__, "espnet_medusa."):
        if not re.search(r"\.(bin|espnet3|__main__)\b", module.name):  # commands
            importlib.import_module(module.name)
    keep_first_depths()
    align(["a"], ["b"])  # loads the compiled function
    for tokens in ("whisper_en", "whisper_multilingual"):
        build(tokens)
    plt.plot([1], label="text")
    plt.legend()
    plt.savefig(io.BytesIO())
    plt.close()
    weakref.finalize._registry.clear()  # torch's, which would take 60 ms at the end of each child


def use_huge_pages() -> None:
    """Merge this process's memory into huge pages, where Linux can: a fork takes half the time."""
    madvise, collapse, size = ctypes.CDLL(None).madvise, 25, 1 << 21
    for line in Path("/proc/self/maps").read_text().splitlines():
        if found := re.fullmatch(r"(\w+)-(\w+) rw-p \w+ 00:00 0 *(\[heap\])?", line):
            first, end = -(-int(found[1], 16) // size) * size, int(found[2], 16) // size * size
            if first < end:
                madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), collapse)


def end_with(stream: int, folder: Path | None = None) -> None:
    """End this process and those it started when the other end is closed; remove its folder."""
    os.read(stream, 1)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def answer(connection: socket.socket) -> None:
    """Run the command of a request and send its exit status; does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    streams = array.array("i")
    size, rights, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * streams.itemsize))
    streams.frombytes(rights[0][2])
    with connection.makefile("rb") as stream:
        request = os.fsdecode(stream.read(int.from_bytes(size, "big")))
    folder, count, *words = request.split("\0")
    words, variables = words[: int(count)], words[int(count) :]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variable.split("=", 1) for variable in variables)
    # A caller that is killed takes its child along.
    threading.Thread(target=end_with, args=[connection.fileno()], daemon=True).start()
    status = 0
    try:
        run(words, folder)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(bytes([status & 255]))
    os._exit(status)


def run(words: list[str], folder: str) -> None:
    sys.argv, sys.path[0] = words[words[0] == "-m" :], folder
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        script = Path(words[0]).absolute()  # spawned processes read it, from any folder
        sys.path[0] = str(script.resolve().parent)
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
