"""Write tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int | None = None
) -> str:
    """Return a table that ends with a newline; bars in cells are escaped.

    The first ``text_columns`` contain text, the others numbers, flush right; None: all are text.
    """
    numbers = 0 if text_columns is None else len(titles) - text_columns
    rule = "|" + "---|" * (len(titles) - numbers) + "--:|" * numbers
    lines = [
        "|" + "|".join(cell.replace("|", "\\|") for cell in row) + "|" for row in (titles, *rows)
    ]
    return "\n".join([lines[0], rule, *lines[1:], ""])
