"""Pages for people: the one way in which processes render them. Pure: values in, HTML out.

Owns the look of all pages and what makes them safe. A page loads nothing, runs no script, and works without a
network. Every text is escaped here, since names of topics, subjects and clients come from strangers.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from html import escape
from typing import Final, NamedTuple

from headrace.process.text import escaped

ROWS_MAX: Final = 1_000
LINES_MAX: Final = 20
"""Texts in one cell."""
WORD_MAX: Final = 40
"""Longer words in a table may be broken anywhere."""
TEXT_MAX: Final = 600
"""Characters of one text on a page."""
REFRESH_S: Final = 5
REFRESH_QUERY: Final = f"refresh={REFRESH_S}"
ACCEPT_MAX: Final = 2_000

STYLE: Final = """
:root{color-scheme:light dark;--text:#1d2329;--soft:#59646e;--line:#d9dee3;--back:#fff;--raised:#f5f7f9;
--link:#0a58ca;--good:#17652b;--warn:#805a00;--bad:#b00020}
@media (prefers-color-scheme:dark){:root{--text:#e4e8ec;--soft:#9aa6b1;--line:#38424c;--back:#14181c;
--raised:#1d2329;--link:#82b4ff;--good:#7bd88f;--warn:#f2c55c;--bad:#ff8d8d}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:80rem;padding:1.2rem 1.5rem 2rem;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
.long,.problem,dd,pre{overflow-wrap:anywhere}
h1{font-size:1.45rem;line-height:1.25;margin:0}h2{font-size:1.1rem;margin:1.8rem 0 .4rem}
p{margin:.3rem 0}a{color:var(--link)}.soft,.soft a{color:var(--soft)}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}
header{display:flex;flex-wrap:wrap;gap:.2rem 1rem;align-items:baseline}
header .state{border:1px solid;border-radius:1em;padding:0 .7em;font-weight:600}
.problem{border-left:.3rem solid var(--bad);background:var(--raised);padding:.4rem .8rem;margin:.6rem 0}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.5rem;margin:1rem 0}
dl div{background:var(--raised);border-radius:.4rem;padding:.4rem .7rem}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;font-weight:600}
table{border-collapse:collapse;width:100%;margin:.3rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .9rem .3rem 0;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
footer{margin-top:2rem;border-top:1px solid var(--line);padding-top:.6rem}
pre{background:var(--raised);border-radius:.4rem;padding:.6rem .8rem;white-space:pre-wrap}
nav span{margin-right:.9rem;white-space:nowrap}nav b{margin-right:.6rem}nav span b{margin:0}
.wide{overflow-x:auto}td:first-child{white-space:nowrap}td.long{white-space:normal}
@media (max-width:45rem){body{padding:.9rem}thead{display:none}table,tbody,tr,td{display:block}
tr{border-bottom:1px solid var(--line);padding:.4rem 0}td,td.n,td:first-child{border:0;padding:.05rem 0;
text-align:left;white-space:normal}td:empty{display:none}td[data-label]::before{content:attr(data-label) ": ";
color:var(--soft)}}
"""
_COMMAND: Final = re.compile(r"`([^`]+)`")
STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

KIND: Final = "text/html; charset=utf-8"
_POLICY: Final = f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": f"{_POLICY}frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""The headers of every response with a page."""
FRAMED_HEADERS: Final[Mapping[str, str]] = {
    **HEADERS,
    "Content-Security-Policy": f"{_POLICY}frame-ancestors 'self'",
}
"""The same for a page that other pages of its server show as a part of theirs."""
VARIES: Final[Mapping[str, str]] = {"Vary": "Accept"}
"""The header of responses that are a page for some clients only."""


class Tone(StrEnum):
    """What a text says about the state: nothing, or that it is well, worth a look, or wrong."""

    PLAIN = ""
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


class Mark(NamedTuple):
    """A text with a tone."""

    text: str
    tone: Tone


class Link(NamedTuple):
    """A text that leads to an http or https URL, or to a path of the same server."""

    text: str
    url: str


class Amount(NamedTuple):
    """A number with its unit, as it is shown."""

    text: str


class Lines(NamedTuple):
    """Texts below each other, `LINES_MAX` of them at most."""

    cells: Sequence[str | Mark]


Cell = str | int | Amount | Mark | Link | Lines | None
"""An int is a count. None is shown as nothing in a table, and as "not known" among figures."""


@dataclass(frozen=True)
class Table:
    """Rows below their columns. Beyond `ROWS_MAX` rows the rest is counted: put the worst first."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Page:
    """What one page shows. `about` says in a sentence what this process does; `path` is where it is served,
    which may be only a query.
    """

    title: str
    state: Mark
    about: str = ""
    problems: Sequence[str] = ()
    figures: Sequence[tuple[str, Cell]] = ()
    tables: Sequence[Table] = ()
    links: Sequence[Link] = ()
    path: str = "/"


class Neighbour(NamedTuple):
    """Another page of the same host. `is_here`: it is this page."""

    datacenter: str
    name: str
    url: str
    is_here: bool = False


def size(size_bytes: int) -> Amount:
    """`3.4 GiB`."""
    if abs(size_bytes) < 1024:
        return Amount(f"{size_bytes} B")
    number = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        number /= 1024
        if abs(number) < 1024 or unit == "TiB":
            break
    return Amount(f"{number:,.1f} {unit}")


def duration(seconds: float) -> Amount:
    """`42 s`, `5 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = int(seconds)
    if whole < 100:
        return Amount(f"{whole} s")
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 100:
        return Amount(f"{minutes} min")
    return Amount(f"{hours} h {minutes % 60} min" if hours < 48 else f"{days} d {hours % 24} h")


def instant(time_ms: int) -> str:
    """`2026-11-23 02:00:05 UTC`."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def state_of(problems: Sequence[str], well: str, wrong: str = "has a problem") -> Mark:
    """The state of a page with these problems."""
    return Mark(wrong, Tone.BAD) if problems else Mark(well, Tone.GOOD)


def wants_page(accept: str) -> bool:
    """Whether a request with this `Accept` header is a browser's: it names HTML, and prefers it to JSON."""
    weights: dict[str, float] = {}
    for part in accept[:ACCEPT_MAX].split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        weight = next((word[2:] for word in parameters if word.startswith("q=")), "1")
        try:
            weights[kind] = float(weight)
        except ValueError:
            weights[kind] = 0.0
    return weights.get("text/html", 0.0) > weights.get("application/json", 0.0)


def render(
    page: Page, now_ms: int, *, neighbours: Iterable[Neighbour] = (), refreshes: bool = False
) -> bytes:
    """Returns the page as HTML, in UTF-8. With `refreshes` a browser loads it again by itself."""
    refresh = f'<meta http-equiv="refresh" content="{REFRESH_S}">\n' if refreshes else ""
    problems = "".join(f'<p class="problem">{_prose(problem)}</p>\n' for problem in page.problems)
    figures = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_cell('not known' if value is None else value)}</dd></div>\n"
        for name, value in page.figures
    )
    links = [Link("refresh", f"/?{REFRESH_QUERY}" if refreshes else page.path)]
    if page.path == "/":  # other paths may have queries of their own
        links.append(Link("stop", "/") if refreshes else Link(f"every {REFRESH_S} s", f"/?{REFRESH_QUERY}"))
    ways = "".join(f" · {_cell(link)}" for link in (*links, *page.links))
    text = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{refresh}<title>{_text(page.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{_text(page.title)}</h1>
<span class="state {page.state.tone}">{_text(page.state.text)}</span></header>
<p class="soft">{_prose(page.about)}</p>
{problems}{f"<dl>{figures}</dl>" if figures else ""}
{"".join(map(_table, page.tables))}
<footer class="soft">
<p>As of {instant(now_ms)}{ways}</p>
{_navigation(neighbours)}
<p>docs/pages.md: what these pages show, and how to reach them from another machine</p>
</footer>
</body>
</html>
"""
    return text.encode("utf-8", "replace")


def _table(table: Table) -> str:
    first: Sequence[Cell] = table.rows[0] if table.rows else [""] * len(table.columns)
    head = "".join(
        f"<th{_number(cell)}>{_text(column)}</th>" for column, cell in zip(table.columns, first, strict=True)
    )
    rows = "".join(f"<tr>{_data(table.columns, row)}</tr>\n" for row in table.rows[:ROWS_MAX])
    hidden = len(table.rows) - ROWS_MAX
    notes = [table.note] if table.note else []
    if hidden > 0:
        notes.append(f"{hidden:,} more rows are not shown.")
    if not table.rows:
        notes.append("none")
    body = ""
    if rows:
        body = f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table>\n"
        body = f'<div class="wide">{body}</div>\n'
    note = f'<p class="soft">{_text(" ".join(notes))}</p>\n' if notes else ""
    return f"<h2>{_text(table.title)}</h2>\n{body}{note}"


def _data(columns: Sequence[str], row: Sequence[Cell]) -> str:
    return "".join(
        f'<td{_number(cell) or _long(cell)} data-label="{_text(column)}">{_cell(cell)}</td>'
        for column, cell in zip(columns, row, strict=True)
    )


def _long(cell: Cell) -> str:
    texts = cell.cells if isinstance(cell, Lines) else [cell]
    words = (word for text in texts for word in _plain(text).split())
    return ' class="long"' if any(len(word) > WORD_MAX for word in words) else ""


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text if isinstance(cell, Mark | Link) else ""


def _number(cell: Cell) -> str:
    return ' class="n"' if isinstance(cell, int | Amount) else ""


def _cell(cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case Link(text, url):
            return _link(text, url)
        case Mark(text, tone):
            return f'<span class="{tone}">{_text(text)}</span>'
        case Amount(text):
            return _text(text)
        case Lines(cells):
            hidden = len(cells) - LINES_MAX
            more = [f"and {hidden:,} more"] if hidden > 0 else []
            return "<br>".join(map(_cell, [*cells[:LINES_MAX], *more]))
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
    return _text(cell)


def _link(text: str, url: str) -> str:
    # A URL that a stranger chose could be a script's.
    if not url.startswith(("http://", "https://", "/", "?")) or url.startswith("//"):
        return _text(text)
    return f'<a href="{escape(escaped(url))}">{_text(text)}</a>'


def _text(text: str) -> str:
    # Cut first: what is escaped may be longer.
    cut = text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
    return escape(escaped(cut))


def _prose(text: str) -> str:
    """A text whose commands, in backticks, are shown as such. What is between them is escaped before."""
    return _COMMAND.sub(r"<code>\1</code>", _text(text))


def _navigation(neighbours: Iterable[Neighbour]) -> str:
    groups: dict[str, list[str]] = {}
    for each in neighbours:
        shown = f"<b>{_text(each.name)}</b>" if each.is_here else _link(each.name, each.url)
        groups.setdefault(each.datacenter, []).append(f"<span>{shown}</span>")
    lines = "".join(
        f"<p>{f'<b>{_text(datacenter)}</b> ' if datacenter else ''}{' '.join(links)}</p>\n"
        for datacenter, links in groups.items()
    )
    return f'<nav aria-label="other pages of this host">\n{lines}</nav>' if lines else ""
