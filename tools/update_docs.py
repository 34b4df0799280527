"""Fill the tables of figures in README.md and docs/ from the files that commands wrote.

    python tools/update_docs.py             # --check: change nothing, name the blocks that differ

A block begins with a comment of YAML; what stands behind it, up to <!-- end -->, is written here:

    <!-- from: egs/mini_synth/asr1/RESULTS.md
    section: Decoding       # the heading; A > B: B under A; the beginning of a heading is enough
    rows: {base plain: no drafts}   # cells that tell a row, a | b for two: its label here
    columns: {configuration: "", WER: "WER [%]"}    # name there: name here
    -->

Without rows or columns all are taken; both may be lists, then names and labels stay. `section` may
be a mapping of headings to labels, which make a first column. `brief: true` leaves
out what cells have in brackets. `optional: true`: nothing is written while the file is missing;
`caption` is a line above the table.
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
    """Cells of the first table under a heading, header first, without the line of dashes."""
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
    """Rows by key, each with its label; a key that tells no row is left out."""
    if wanted is None:
        return {str(number): (row, None) for number, row in enumerate(rows)}
    chosen = {}
    for key, label in (wanted if isinstance(wanted, dict) else dict.fromkeys(wanted)).items():
        found = [row for row in rows if all(cell in row for cell in key.split(" | "))]
        if len(found) > 1:
            raise ValueError(f"'{key}' tells {len(found)} rows; name more of its cells")
        if found:
            chosen[key] = found[0], label
    return chosen


def make_table(block: dict) -> str:
    """What belongs into a block, Markdown."""
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
    """A page with all its blocks as they should be."""

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
    """Pages that may have blocks."""
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
