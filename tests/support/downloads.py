"""Downloads: an HTTP server with ranges, ETags and errors on request; tar archives."""

import io
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class FileServer:
    """What the server has and how it behaves; tests change it between calls."""

    files: dict[str, bytes] = field(default_factory=dict)  # by path, with leading slash
    versions: dict[str, str] = field(default_factory=dict)  # ETags by path
    cut_after: int | None = None  # bytes of a body before the connection breaks
    statuses: list[int] = field(default_factory=list)  # of the next requests, which fail
    supports_range: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range header
    url: str = ""


@contextmanager
def serve() -> Iterator[FileServer]:
    state = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            byte_range, version = self.headers.get("Range"), state.versions.get(self.path)
            state.requests.append((self.path, byte_range))
            content = state.files.get(self.path)
            if state.statuses or content is None:
                self.send_error(state.statuses.pop(0) if state.statuses else 404)
                return
            is_same = self.headers.get("If-Range", version) == version
            start = 0
            if byte_range is not None and is_same and state.supports_range:
                start = int(byte_range.removeprefix("bytes=").removesuffix("-"))
            part, size = content[start:], len(content)
            if start >= size > 0:
                headers = {"Content-Range": f"bytes */{size}", "Content-Length": "0"}
                self.send_response(416)
            else:
                headers = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if start else {}
                headers |= {} if version is None else {"ETag": version}
                headers["Content-Length"] = str(len(part))
                self.send_response(206 if start else 200)
            for header in headers.items():
                self.send_header(*header)
            self.end_headers()
            self.wfile.write(part[: state.cut_after])

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


def make_tar(path: Path, members: dict[str, bytes | tarfile.TarInfo], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
                continue
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
