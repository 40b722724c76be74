"""Where in a YAML text a field stands: so that an error can name its line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from yaml.nodes import Node

# Deeper than any field of our files; a node may contain itself by an alias.
DEPTH_MAX: Final = 6

Path = tuple[str | int, ...]


def lines_of(text: str) -> dict[Path, int]:
    """The line, from 1, of each field of a YAML text, by its path: ("datacenters", "east", "network")."""
    # Imported here so that programs that only use addresses start quickly.
    import yaml

    node = yaml.compose(text, Loader=yaml.SafeLoader)
    return {} if node is None else dict(_walk(node, (), DEPTH_MAX))


def _walk(node: Node, path: Path, depth: int) -> Iterator[tuple[Path, int]]:
    from yaml.nodes import MappingNode, ScalarNode, SequenceNode

    if not depth:
        return
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if isinstance(key, ScalarNode):
                inner = (*path, str(key.value))
                yield inner, key.start_mark.line + 1
                yield from _walk(value, inner, depth - 1)
    elif isinstance(node, SequenceNode):
        for number, value in enumerate(node.value):
            yield (*path, number), value.start_mark.line + 1
            yield from _walk(value, (*path, number), depth - 1)


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of a field, or of the nearest one that holds it; None if the text has none of them."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None
