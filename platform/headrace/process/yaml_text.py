"""YAML that people write, within bounds: no file costs much more than it is long, each error is one line."""

from __future__ import annotations

import reprlib
from typing import Any, Final

SIZE_MAX_CHARS: Final = 1_000_000
SHOWN_MAX_CHARS: Final = 80
DEPTH_MAX: Final = 50
VALUES_MAX: Final = 200_000
"""Of a whole text. What an alias stands for counts wherever the alias is: a few lines can mean billions."""


class YamlError(ValueError):
    """The text is no YAML, or beyond the bounds. The message is one line that follows the file's name."""


def load(text: str) -> Any:
    """Returns what a YAML text says, as plain data. Raises `YamlError`."""
    # Imported here so that programs that only use addresses start quickly.
    import yaml

    if len(text) > SIZE_MAX_CHARS:
        raise YamlError(f"has {len(text)} characters, more than {SIZE_MAX_CHARS}")
    try:
        _check(text)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise YamlError(f"is not YAML: {' '.join(str(error).split())}") from None
    except YamlError:
        raise
    except (ValueError, TypeError, OverflowError, AttributeError) as error:  # such as the date 2026-02-31
        raise YamlError(f"holds a value that cannot be read: {' '.join(str(error).split())}") from None


def shown(value: object) -> str:
    """Returns a value for an error message, shortened."""
    short = reprlib.Repr()
    short.maxlevel, short.maxdict, short.maxlist, short.maxset = 2, 3, 3, 3
    short.maxstring = short.maxother = SHOWN_MAX_CHARS
    return short.repr(value)


def _check(text: str) -> None:
    """Counts the values that the text means. Raises `YamlError`, `yaml.YAMLError`."""
    import yaml

    sizes: dict[str, int | None] = {}  # of what an anchor names; None until it ends
    open_: list[tuple[str | None, int]] = []  # of each open collection its anchor, and the count before it
    count = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        match event:
            case yaml.AliasEvent():
                size = sizes.get(event.anchor or "", 1)
                if size is None:
                    raise YamlError(f"has a value &{event.anchor} that holds itself (line {line})")
                count += size
            case yaml.ScalarEvent():
                count += 1
                if event.anchor is not None:
                    sizes[event.anchor] = 1
            case yaml.CollectionStartEvent():
                if event.anchor is not None:
                    sizes[event.anchor] = None
                open_.append((event.anchor, count))
                count += 1
            case yaml.CollectionEndEvent():
                anchor, before = open_.pop()
                if anchor is not None:
                    sizes[anchor] = count - before
        if len(open_) > DEPTH_MAX:
            raise YamlError(f"nests deeper than {DEPTH_MAX} (line {line})")
        if count > VALUES_MAX:
            raise YamlError(f"means more than {VALUES_MAX} values (line {line})")
