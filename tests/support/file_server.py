"""An http server for downloads: ranges, ETags, and what goes wrong on the way."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """What the server has, and how it behaves; tests change it between calls."""

    files: dict[str, bytes] = field(default_factory=dict)  # path (with leading slash) to content
    # Path to ETag; without one the server sends none.
    versions: dict[str, str] = field(default_factory=dict)
    # Most bytes of a body before the connection breaks; None: whole bodies.
    cut_after: int | None = None
    # Statuses to answer the next requests with, before it serves again.
    statuses: list[int] = field(default_factory=list)
    supports_range: bool = True  # whether it can start in the middle
    # Path and Range header of each request so far.
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serve() -> Iterator[FileServer]:
    """Run a server until the block ends."""
    state = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            _answer(self, state)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(handler: BaseHTTPRequestHandler, state: FileServer) -> None:
    wanted = handler.headers.get("Range")
    state.requests.append((handler.path, wanted))
    if state.statuses:
        handler.send_error(state.statuses.pop(0))
        return
    content = state.files.get(handler.path)
    if content is None:
        handler.send_error(404)
        return
    version = state.versions.get(handler.path)
    is_same = handler.headers.get("If-Range", version) == version
    start = 0
    if wanted is not None and is_same and state.supports_range:
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
    if start >= len(content) > 0:
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{len(content)}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    if version is not None:
        handler.send_header("ETag", version)
    handler.send_header("Content-Length", str(len(content) - start))
    handler.end_headers()
    handler.wfile.write(content[start:][: state.cut_after])
