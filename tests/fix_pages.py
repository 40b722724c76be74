"""Reads pages as a strict reader: every element is closed, and nothing on a page could act or load."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final

EMPTY: Final = {"meta", "br"}
ELEMENTS: Final = {
    *(
        "code",
        "html",
        "head",
        "title",
        "style",
        "body",
        "header",
        "h1",
        "h2",
        "p",
        "span",
        "b",
        "a",
        "dl",
        "div",
        "dt",
    ),
    *("dd", "table", "thead", "tbody", "tr", "th", "td", "footer", "nav", *EMPTY),
}
ATTRIBUTES: Final = {
    *("lang", "charset", "name", "content", "http-equiv", "class", "href", "data-label", "aria-label"),
}
EVIL: Final = "<script>alert(1)</script>\"'>&\x1b[2J\u202e</style>"
"""A name that a stranger chose."""


class PageReader(HTMLParser):
    """`texts`: what a person reads; `links`: where the page leads."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.links: list[str] = []
        self.styles: list[str] = []
        self._open: list[str] = []
        assert html.startswith("<!DOCTYPE html>\n")
        self.feed(html)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        names = [name for name, _ in attrs]
        assert set(names) <= ATTRIBUTES, names
        assert len(names) == len(set(names)), names
        if tag not in EMPTY:
            self._open.append(tag)
        for name, value in attrs:
            if name == "href":
                assert value is not None
                assert value.startswith(("http://", "https://", "/", "?")), value
                self.links.append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.styles.append(data)
        elif data.strip():
            self.texts.append(data.strip())

    @property
    def text(self) -> str:
        return " ".join(self.texts)
