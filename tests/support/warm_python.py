"""A server that forks the Python processes of recipes, which would import ESPnet for 7 s each.

Its `python3` lets a process that has imported ESPnet run `-m espnet_medusa...` and `-m espnet2...`
in a forked child with the caller's arguments, environment, folder and streams. It runs the real
Python for all other arguments. Child processes of a forked child use the same `python3`.
"""

import array
import atexit
import functools
import gc
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

CLIENT = """\
#!{python} -IS
import sys, os
if sys.argv[1:2] != ["-m"] or not sys.argv[2].startswith(("espnet2.", "espnet_medusa.")):
    os.execv("{python}", ["{python}", *sys.argv[1:]])
import array, json, socket
server = socket.socket(socket.AF_UNIX)
server.connect("{address}")
request = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
server.sendmsg([len(request).to_bytes(4, "big")], streams)
server.sendall(request)
status = server.recv(1)  # none from a child that was killed
sys.exit(status[0] if status else 137)
"""


@functools.cache
def environment() -> dict[str, str]:
    """Environment of a recipe; the first call of a process starts its server."""
    folder = Path(tempfile.mkdtemp(prefix="warm_python"))
    atexit.register(shutil.rmtree, folder)
    address, client = folder / "socket", folder / "python3"
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen(64)
        number = listening.fileno()
        subprocess.Popen(
            [sys.executable, __file__, str(number), str(client)],
            pass_fds=[number],
            stdin=subprocess.PIPE,  # closed when this process ends, and the server ends, too
            start_new_session=True,
        )
    places = [folder, Path(sys.executable).parent, os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(map(str, places))}


def executable() -> str:
    return environment()["PATH"].split(os.pathsep)[0] + "/python3"


def serve(listening: socket.socket, client: str) -> None:
    """Fork a child for every request."""
    import matplotlib.pyplot  # noqa: F401

    import espnet_medusa.inference.utterance_decoder  # noqa: F401
    import espnet_medusa.task  # noqa: F401
    from espnet_medusa.scoring.alignment import align

    align(["a"], ["b"])  # loads the compiled function
    sys.executable = client
    gc.freeze()  # no child looks for garbage there, nor writes to its pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    threading.Thread(target=end_with, args=[sys.stdin.fileno()], daemon=True).start()
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            answer(connection)
        connection.close()


def end_with(stream: int) -> None:
    """End this process and those it started when the other end is closed."""
    os.read(stream, 1)
    os.killpg(0, signal.SIGKILL)


def answer(connection: socket.socket) -> None:
    """Run what is asked for and send its status; does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    streams = array.array("i")
    size, rights, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * streams.itemsize))
    streams.frombytes(rights[0][2])
    with connection.makefile("rb") as stream:
        arguments, environment, folder = json.loads(stream.read(int.from_bytes(size, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # A caller that is killed takes its child along.
    threading.Thread(target=end_with, args=[connection.fileno()], daemon=True).start()
    status = 0
    try:
        sys.argv = arguments
        sys.path[0] = folder
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
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


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
