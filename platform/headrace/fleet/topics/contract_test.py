"""The text of a topic's contract test: a file for pytest, which the service's developers keep. Pure.

`events.contract` has the checks; the file has what belongs to the service: its events.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from headrace.fleet.topics.wanted import NewTopic
from headrace.registry.schemas import parse

LINE_MAX: Final = 100
_EXAMPLES_OF_LOGICAL: Final[dict[str, Any]] = {
    "timestamp-millis": 1_700_000_000_000,
    "timestamp-micros": 1_700_000_000_000_000,
    "local-timestamp-millis": 1_700_000_000_000,
    "local-timestamp-micros": 1_700_000_000_000_000,
    "date": 19_675,
    "time-millis": 36_000_000,
    "time-micros": 36_000_000_000,
    "uuid": "7f0c2a52-5a39-4b1c-9d4e-0a7e5f6f3b11",
}
_DECIMAL: Final = b"\x01"
"""The unscaled number 1, which every precision has."""
_EXAMPLES: Final[dict[str, Any]] = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 1,
    "float": 1.5,
    "double": 1.5,
    "bytes": b"bytes",
    "string": "text",
}

_TEXT: Final = '''"""The contract of topic {topic}: its schema fits the registry, its events the schema.

Made by `headrace topics new`, and yours from now on: put into EXAMPLES what your service publishes. Run it
with headrace's Python before each release, with the registry of the environment that you release to:

    REGISTRY_URL={registry} python -m pytest {name}
"""

import os
from pathlib import Path

import pytest

from headrace.events.contract import Contract

CONTRACT = Contract(
    topic={topic_text},
    schema_file=Path(__file__).parent / {schema},
    registry_url=os.environ.get("REGISTRY_URL", {registry_text}),
)

# Without the header, which publishers add.
EXAMPLES = [
    {example},
]


def test_the_schema_has_the_header() -> None:
    CONTRACT.check_header()


def test_the_schema_may_follow_the_registered_versions() -> None:
    CONTRACT.check_compatibility()


@pytest.mark.parametrize("event", EXAMPLES)
def test_an_event_is_read_as_it_was_written(event: dict) -> None:
    CONTRACT.check_event(event)
'''


def contract_test(wanted: NewTopic, path: Path, registry_url: str) -> str:
    """Returns the text of the test in `path`, which finds the schema's file from there."""
    schema = os.path.relpath(wanted.schema.path.absolute(), path.absolute().parent)
    return _TEXT.format(
        topic=wanted.name,
        name=path.name,
        registry=registry_url,
        topic_text=json.dumps(wanted.name),
        schema=json.dumps(schema),
        registry_text=json.dumps(registry_url),
        example=literal(example_event(wanted.schema.text), 4),
    )


def contract_test_name(topic: str) -> str:
    """Returns the file's name: `test_order_placed_contract.py`."""
    return f"test_{''.join(each if each.isalnum() else '_' for each in topic).lower()}_contract.py"


def example_event(schema: str) -> dict[str, Any]:
    """Returns an event that fits the schema, without its header, with a value for every field."""
    tree = json.loads(parse(schema).normal_text)
    named: dict[str, Any] = {}
    event: dict[str, Any] = _example(tree, named)
    event.pop("header", None)
    return event


class _EndlessError(Exception):
    """A record would contain itself without end."""


def _example(kind: Any, named: dict[str, Any], inside: frozenset[str] = frozenset()) -> Any:
    """Returns a value. `inside`: the records that it is to be a part of. Raises `_EndlessError`."""
    if isinstance(kind, list):
        return _example_of_union(kind, named, inside)
    if isinstance(kind, str):
        if kind in inside:
            raise _EndlessError
        return _EXAMPLES[kind] if kind in _EXAMPLES else _example(named[kind], named, inside)
    name = kind["type"]
    if "name" in kind:
        named[kind["name"]] = kind
    if name == "record":
        inside |= {kind["name"]}
        return {field["name"]: _example(field["type"], named, inside) for field in kind["fields"]}
    if name == "enum":
        return kind["symbols"][0]
    if name == "fixed":
        return b"\0" * kind["size"]
    if name in ("array", "map"):
        try:
            value = _example(kind["items" if name == "array" else "values"], named, inside)
        except _EndlessError:
            return [] if name == "array" else {}
        return [value] if name == "array" else {"key": value}
    if kind.get("logicalType") == "decimal":
        return _DECIMAL
    if kind.get("logicalType") in _EXAMPLES_OF_LOGICAL and name in ("int", "long", "string"):
        return _EXAMPLES_OF_LOGICAL[kind["logicalType"]]
    return _example(name, named, inside)


def _example_of_union(kinds: list[Any], named: dict[str, Any], inside: frozenset[str]) -> Any:
    # A nullable field says more with a value.
    for kind in sorted(kinds, key=lambda each: each == "null"):
        try:
            return _example(kind, named, inside)
        except _EndlessError:
            continue
    raise _EndlessError


def literal(value: Any, indent: int) -> str:
    """Returns Python's text of a value, on several lines if it is long, as formatters write it."""
    if isinstance(value, str):
        return json.dumps(value)
    if not isinstance(value, dict | list):
        return repr(value)
    if isinstance(value, dict):
        opening, closing = "{}"
        items = [f"{json.dumps(key)}: {literal(each, indent + 4)}" for key, each in value.items()]
    else:
        opening, closing = "[]"
        items = [literal(each, indent + 4) for each in value]
    line = f"{opening}{', '.join(items)}{closing}"
    if len(line) + indent <= LINE_MAX and "\n" not in line:
        return line
    inner = " " * (indent + 4)
    return f"{opening}\n" + "".join(f"{inner}{item},\n" for item in items) + " " * indent + closing
