"""Fill the tables of figures in README.md and docs/ from the files that commands wrote.

    python tools/update_docs.py             # --check: change nothing, list the pages that differ

A block begins with a comment in YAML. This program writes the table after it, up to <!-- end -->:

    <!-- from: egs/mini_synth/asr1/RESULTS.md
    section: Decoding       # the heading, or its beginning; A > B: heading B under heading A
    rows: {base baseline: baseline}   # cell of the row (a | b: two cells): label on the page
    columns: {configuration: "", WER: "WER [%]"}    # name in the file: name on the page
    -->

Without `rows` or `columns`, all are used. Both may be lists, without new names. `section` may be a
mapping of headings to labels, which become the first column. `brief: true` drops text in brackets.
With `optional: true`, the block is empty while the file is missing. `caption` is a line above the
table.
"""

import argparse
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
START = "<!-- from: "
BLOCK = re.compile(rf"(<!-- (from: .*?)-->\n)((?:(?!{START}).)*?)(<!-- end -->)", re.DOTALL)
BRACKETS = re.compile(r" *(\[[^\]]*\]|\([^)]*\))")


def read_table(text: str, section: str | None) -> list[list[str]]:
    """Return the first table under a heading as rows of cells, the header first."""
    wanted, rows = [part.strip() for part in section.split(">")] if section else [], []
    for line in text.splitlines():
        if wanted:
            found = line.startswith("#") and line.lstrip("# ").startswith(wanted[0])
            wanted = wanted[1:] if found else wanted
        elif line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip()[1:-1].split("|")])
        elif rows:
            break
    if not rows:
        raise ValueError(f"no table under '{section}'")
    return [rows[0], *rows[2:]]


def choose(rows: list[list[str]], wanted: dict | list | None) -> dict[str, tuple]:
    """Return rows by key, each with its label; keys without a row are omitted."""
    if wanted is None:
        return {str(number): (row, None) for number, row in enumerate(rows)}
    chosen = {}
    for key, label in (wanted if isinstance(wanted, dict) else dict.fromkeys(wanted)).items():
        found = [row for row in rows if all(cell in row for cell in key.split(" | "))]
        if len(found) > 1:
            raise ValueError(f"'{key}' matches {len(found)} rows; name more of its cells")
        if found:
            chosen[key] = found[0], label
    return chosen


def make_table(block: dict) -> str:
    """Return the content of a block in Markdown."""
    source = ROOT / block["from"]
    if block.get("optional") and not source.exists():
        return ""
    text, sections = source.read_text(encoding="utf-8"), block.get("section")
    labelled = isinstance(sections, dict)
    names, lines, met = [], [], set()
    for section, section_label in (sections if labelled else {sections: None}).items():
        header, *rows = read_table(text, section)
        columns = block.get("columns", header)
        columns = columns if isinstance(columns, dict) else {name: name for name in columns}
        chosen = choose(rows, block.get("rows"))
        met |= chosen.keys()
        for row, label in chosen.values():
            cells = [row[header.index(name)] for name in columns]
            if block.get("brief"):
                cells = [BRACKETS.sub("", cell) for cell in cells]
            cells[0] = cells[0] if label is None else label
            lines.append([section_label, *cells] if labelled else cells)
        names = ["", *columns.values()] if labelled else [*columns.values()]
    if missing := set(block.get("rows", [])) - met:
        raise ValueError(f"no row has {', '.join(sorted(missing))}")
    table = "\n".join(f"| {' | '.join(row)} |" for row in [names, ["---"] * len(names), *lines])
    caption = f"\n{block['caption']}\n" if "caption" in block else ""
    return f"{caption}\n{table}\n\n"


def fill(text: str) -> str:
    """Return a page with all blocks filled."""

    def replace(match: re.Match) -> str:
        block = yaml.safe_load(match[2])
        try:
            return match[1] + make_table(block) + match[4]
        except (OSError, ValueError) as error:
            raise SystemExit(f"{block['from']}: {error}") from error

    if len(BLOCK.findall(text)) != text.count(START):
        raise SystemExit("a block has no end: <!-- end -->")
    return BLOCK.sub(replace, text)


def pages() -> list[Path]:
    """Return the pages that may have blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    """Command-line entry."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    status = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text)) == text:
            continue
        print(f"{page.relative_to(ROOT)}: {'differs from its sources' if check else 'written'}")
        status = int(check)
        if not check:
            page.write_text(filled, encoding="utf-8")
    sys.exit(status)


if __name__ == "__main__":
    main()
