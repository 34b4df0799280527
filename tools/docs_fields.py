"""Griffe extension for docs/api.md: use comments and help texts as the texts of fields.

A field's text is the comment after it, the comment lines before it, or the help text of `option`.
"""

import ast
from importlib import import_module
from itertools import takewhile

from griffe import Attribute, Docstring, Extension


class FieldTexts(Extension):
    """Give fields without a docstring the text of their option or comment."""

    def on_attribute_instance(self, *, node: ast.AST, attr: Attribute, **_) -> None:
        if attr.docstring is None and isinstance(node, ast.AnnAssign):
            text = option_help(node.value, attr) or comment_of(attr)
            attr.docstring = Docstring(text, lineno=attr.lineno, parent=attr) if text else None
            if is_option(node.value):
                attr.value = ast.unparse(node.value.args[0])


def is_option(value: ast.AST | None) -> bool:
    return isinstance(value, ast.Call) and getattr(value.func, "id", None) == "option"


def option_help(value: ast.AST | None, attr: Attribute) -> str | None:
    """Return the help text of a field ``NAME: TYPE = option(DEFAULT, TEXT)``."""
    if not is_option(value):
        return None
    options = getattr(import_module(attr.module.path), attr.parent.name)
    return options.__dataclass_fields__[attr.name].metadata["help"]


def comment_of(attr: Attribute) -> str:
    """Return the comment after a field, or else the comment lines before it."""
    lines = attr.lines_collection[attr.filepath]
    _, mark, after = lines[attr.endlineno - 1].partition("  # ")
    if mark:
        return after
    before = takewhile(
        lambda line: line.startswith("#"), map(str.strip, lines[attr.lineno - 2 :: -1])
    )
    return " ".join(line.lstrip("# ") for line in reversed([*before]))
