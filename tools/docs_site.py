"""Hooks of MkDocs: README.md is the site's first page, and pages may link out of docs/.

Links in the pages work in the repository. In the site, reports and pictures that a page
links to become part of it; links to other files lead to `repo_url`; without `repo_url` they
become plain text.
"""

import re
from pathlib import Path
from posixpath import dirname, relpath

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS, HOME = ROOT / "docs", ROOT / "README.md"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(<?(?!https?:|#|mailto:)([^)>#\s]+)(#[^)>\s]+)?>?\)")
PARTS = (".md", ".png", ".svg")


def uri_of(path: Path) -> str:
    """Return the path of a file in the site."""
    if path == HOME:
        return "index.md"
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()


def on_files(files: Files, config) -> Files:
    """Add README.md, CONTRIBUTING.md, and all files that pages link to, directly or not."""
    queue = [HOME, ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")]
    seen = set(queue)
    while queue:
        path = queue.pop()
        if uri_of(path) not in files.src_uris:
            files.append(File.generated(config, uri_of(path), abs_src_path=str(path)))
        if path.suffix != ".md":
            continue
        for match in LINK.finditer(path.read_text(encoding="utf-8")):
            linked = (path.parent / match[3]).resolve()
            if linked.suffix in PARTS and linked.is_file() and linked not in seen:
                seen.add(linked)
                queue.append(linked)
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Return a page with the links of the site."""
    here = Path(page.file.abs_src_path)

    def replace(match: re.Match) -> str:
        picture, text, target, anchor = match.groups("")
        linked = (here.parent / target).resolve()
        if not linked.exists():
            return match[0]  # MkDocs reports the missing file
        if uri_of(linked) in files.src_uris:
            where = relpath(uri_of(linked), dirname(page.file.src_uri) or ".")
            return f"{picture}[{text}]({where}{anchor})"
        if config.repo_url:
            address = f"{config.repo_url.rstrip('/')}/blob/HEAD/{linked.relative_to(ROOT)}"
            return f"[{text}]({address})"
        return text

    return LINK.sub(replace, markdown)
