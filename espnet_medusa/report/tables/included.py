"""Sections of a report that another program wrote."""

import os
import re
from pathlib import Path

from espnet_medusa.report.plan.report_plan import IncludedFile

NOT_YET = "not yet measured"
HEADING = re.compile(r"^#+ ", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


def included_markdown(included: IncludedFile, report: Path) -> str:
    """The file below its title in the plan: headings a level down, links from the report's folder.

    Args:
        included: Title and file; a missing file is said to be not yet measured.
        report: File that the section will be in.
    """
    path = Path(included.file)
    if not path.is_file():
        return f"## {included.title}\n\n{NOT_YET}\n"
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"\A# .*\n+", "", text)
    text = HEADING.sub(lambda match: f"#{match[0]}", text)

    def move(match: re.Match) -> str:
        return f"]({os.path.relpath(path.parent / match[1], report.parent)})"

    return f"## {included.title}\n\n{LINK.sub(move, text)}"
