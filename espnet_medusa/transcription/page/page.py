"""Write the page: one HTML file of template, style, script and JSON blocks."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable
from pathlib import Path

from espnet_medusa.data.files.atomic import open_atomically

FOLDER = Path(__file__).parent
# Characters that end a script element, begin a comment, or end a line of JavaScript; and bytes of
# file names that are not UTF-8, which Python reads as surrogates.
UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def write_page(path: Path, overview: dict, utterances: Iterable[dict]) -> None:
    """Write a page atomically; only one utterance's data is in memory at a time.

    ``utterances`` has one block for each entry of ``overview["utterances"]``, in the same order;
    their relative audio paths are relative to the page's folder. Raise ValueError if there are more
    or fewer blocks than entries, or a number is not finite.
    """
    expected = len(overview["utterances"])
    before, after = _fill_template(overview["title"]).split("{{data}}")
    with open_atomically(path) as stream:
        stream.write(before + _block("page", overview))
        written = 0
        for written, utterance in enumerate(utterances, start=1):
            stream.write(_block(f"utterance-{written - 1}", utterance))
        if written != expected:
            raise ValueError(f"the overview has {expected} utterances, but there are {written}")
        stream.write(after)


def _fill_template(title: str) -> str:
    """Return the template with everything but the data."""
    template, style, functions, drawing = (
        (FOLDER / name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "functions.js", "page.js")
    )
    # The block keeps the names of the script out of the global scope.
    script = f'"use strict";\n{{\n{functions}\n{drawing}}}\n'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "media-src 'self' data: file:; img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "script": script}
    for name, part in parts.items():
        template = template.replace(f"{{{{{name}}}}}", part)
    # The title comes last and without braces, as it could contain the name of a part.
    title = html.escape(title.encode("utf-8", "replace").decode()).replace("{", "&#123;")
    return template.replace("{{title}}", title)


def _hash(text: str) -> str:
    """Return the source expression that allows exactly this inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _block(name: str, data: dict) -> str:
    """Return a JSON block, in which no text can end the element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return f'<script type="application/json" id="{name}">{text}</script>\n'
