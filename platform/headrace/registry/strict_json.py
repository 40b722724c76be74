"""JSON as strangers send it: bytes or text become a value that can be stored, compared and sent back, or an
error.

Refuses what Python's parser accepts although JSON or UTF-8 does not have it, and what two readers would
understand differently. Pure.
"""

import json
import math
from typing import Any, Final

NUMBER_DIGITS_MAX: Final = 400
"""A double has 309 digits before its point at most."""


class JsonError(ValueError):
    """The text is not JSON that every reader understands alike. The message names the problem."""


def loads(data: bytes | bytearray | str) -> Any:
    """Returns the value. Raises `JsonError`."""
    if not isinstance(data, str):
        try:
            data = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise JsonError(f"byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(
            data,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
        )
        # Escapes can spell half a character; such text cannot be sent or stored.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except JsonError:
        raise
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise JsonError(
            f"a string contains \\u{half:04x}, half of a surrogate pair, without its other half"
        ) from None
    except RecursionError:
        raise JsonError("it is nested too deeply") from None
    except ValueError as error:
        raise JsonError(str(error)) from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise JsonError(f"an object has the attribute {shown(name)} twice; keep one of them")
            seen.add(name)
    return found


def _constant(name: str) -> Any:
    raise JsonError(f"{name} is not a JSON number")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise JsonError(f"the number {shown(text)} is too large for a double")
    return number


def _int(text: str) -> int:
    if len(text) > NUMBER_DIGITS_MAX:
        raise JsonError(f"a number has {len(text)} digits; at most {NUMBER_DIGITS_MAX} are allowed")
    return int(text)


SHOWN_MAX: Final = 80


def shown(value: Any) -> str:
    """Returns a value for an error message: on one line, and not longer than `SHOWN_MAX` characters."""
    # A prefix first: the value may be a megabyte.
    text = ascii(value[:SHOWN_MAX] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
