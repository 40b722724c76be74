"""Writes the Markdown of our pages, which GitHub shows as it is, in the dialect that mkdocs reads.

Python-Markdown wants an empty line before a list, and four spaces of indentation for what belongs to an item;
GitHub wants as many as the item's mark is wide. Links that leave the folder of pages become text. Pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

ITEM: Final = re.compile(r"( *)([-*]|\d+\.)( +)(?=\S)")
FENCE: Final = re.compile(r"\s*(```|~~~)")
LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
INDENTATION: Final = 4


def lists(text: str) -> str:
    """Lists as Python-Markdown reads them."""
    return "\n".join(_lists(text.splitlines())) + "\n"


def _lists(lines: list[str]) -> Iterator[str]:
    widths: list[int] = []  # of the open items: the column of their text
    in_fence, before = False, ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        item = None if in_fence else ITEM.match(line)
        is_code, is_fence = in_fence, FENCE.match(line) is not None
        in_fence = is_code is not is_fence
        if line.strip() and not is_code:
            while widths and indent < widths[-1]:
                if item is None and before.strip() and indent == 0 and not _begins_a_block(line):
                    break  # a paragraph goes on in the next line, however it is indented
                widths.pop()
        moved = " " * (INDENTATION * len(widths)) + line[min(indent, widths[-1] if widths else 0) :]
        if item is not None:
            if before.strip() and not ITEM.match(before) and not before.startswith(" "):
                yield ""
            mark = item[2].ljust(INDENTATION)
            moved = " " * (INDENTATION * len(widths)) + mark + line[item.end() :]
            widths.append(item.end())
        yield moved if line.strip() else ""
        before = line


def _begins_a_block(line: str) -> bool:
    return line.startswith(("#", "|", "<", "!", "```"))


def links(text: str, page: PurePosixPath, folder: PurePosixPath, moved: dict[str, str]) -> str:
    """Links of a page of the repository as links of the site.

    `folder` holds the site's pages. `moved`: pages of the repository that have another path in the site.
    Targets elsewhere in the repository are named in the text instead.
    """

    def changed(match: re.Match[str]) -> str:
        image, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = PurePosixPath(os.path.normpath(page.parent / target))
        site_path = moved.get(str(path)) or (
            str(path.relative_to(folder)) if path.is_relative_to(folder) else ""
        )
        if not site_path or "." not in PurePosixPath(site_path).name:
            is_named = str(path).endswith(label.strip("`/"))
            return label if is_named else f"{label} (`{path}`)"
        start = PurePosixPath(moved.get(str(page)) or str(page.relative_to(folder))).parent
        return f"{image}[{label}]({os.path.relpath(site_path, start)}{anchor})"

    return LINK.sub(changed, text)
