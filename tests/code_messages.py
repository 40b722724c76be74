"""The messages in the code: every string that an exception is made with, with `…` for what is filled in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("platform", "broker", "mirror", "terraform")
ELLIPSIS: Final = "…"
PIECE_MIN: Final = 2
"""Shorter pieces between two `…` say nothing."""


class Message(NamedTuple):
    """One message: the exception's class, where it is made, and its text."""

    error: str
    where: str
    text: str


def text_of(node: ast.expr) -> str:
    """A string's text; `…` for what is filled in, and for what is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ELLIPSIS


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder / "headrace").rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def raised() -> Iterator[Message]:
    """The messages with which exceptions are made: the strings of calls of `…Error`."""
    for path, tree in sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            for argument in node.args if name.endswith("Error") else ():
                text = " ".join(text_of(argument).split())
                if re.search(r"\w{3}", text):
                    yield Message(name, f"{path}:{node.lineno}", text)


def strings() -> str:
    """All strings of the code in one text, to search in."""
    found = [
        " ".join(text_of(node).split())
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp))
    ]
    return "\n".join(found)


def expression_of(pattern: str) -> re.Pattern[str]:
    """The regular expression of a message of the page: what stands between its `…`, in this order."""
    pieces = [piece.strip() for piece in pattern.split(ELLIPSIS)]
    kept = [re.escape(piece) for piece in pieces if len(piece) >= PIECE_MIN]
    return re.compile("[^\n]*?".join(kept))
