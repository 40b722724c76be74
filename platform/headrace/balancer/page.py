"""The balancer's status page. Pure: a status in, HTML out."""

from __future__ import annotations

from html import escape
from typing import Any, Final

_COLUMNS: Final = (
    ("broker", "broker_id"),
    ("address", "address"),
    ("phase", "phase"),
    ("healthy", "is_up"),
    ("last check", "check"),
    ("connections", "connections"),
    ("ever", "connections_total"),
    ("failed attempts", "connect_errors"),
    ("bytes from clients", "bytes_in"),
    ("bytes to clients", "bytes_out"),
)
_STYLE: Final = (
    "body{font:15px system-ui;margin:2em}td,th{padding:.3em .9em;text-align:right;"
    "border-bottom:1px solid #ddd}.bad{color:#b00}"
)


def page(status: dict[str, Any]) -> str:
    """Renders what `Control.status` returns."""
    head = "".join(f"<th>{escape(title)}</th>" for title, _ in _COLUMNS)
    rows = ""
    for backend in status["backends"]:
        cells = "".join(f"<td>{escape(_cell(backend.get(key)))}</td>" for _, key in _COLUMNS)
        rows += f"<tr{'' if backend['is_up'] else ' class=bad'}>{cells}</tr>\n"
    problem = f'<p class="bad">{escape(status["problem"])}</p>\n' if status["problem"] else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
        f"<title>balancer {escape(status['listen'])}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>Producers connect to {escape(status['listen'])}</h1>\n"
        f"<p>{escape(status['why'])}</p>\n{problem}"
        f"<table><tr>{head}</tr>\n{rows}</table></body></html>\n"
    )


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)
