"""The header of every event and report: when, where and by which service it was published."""

import uuid
from dataclasses import dataclass
from typing import Any, Final

FIELDS: Final = ("time", "datacenter", "server", "service", "guid")
NAME_MAX_CHARS: Final = 255
_MOMENT: Final = "a long with the logicalType timestamp-millis"


@dataclass(frozen=True, slots=True)
class Origin:
    """The publishing service: the constant part of the header. Raises `ValueError` for names that no audit
    takes: it would set all reports aside.
    """

    datacenter: str
    server: str
    service: str

    def __post_init__(self) -> None:
        for what in ("datacenter", "server", "service"):
            name = getattr(self, what)
            if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX_CHARS or not name.isprintable():
                raise ValueError(
                    f"{what} is {name!r:.80}; expected 1 to {NAME_MAX_CHARS} characters that can be printed"
                )

    def header(self, time_ms: int) -> dict[str, Any]:
        return {
            "time": time_ms,
            "datacenter": self.datacenter,
            "server": self.server,
            "service": self.service,
            "guid": str(uuid.uuid4()),
        }


def header_problems(schema: Any) -> list[str]:
    """Returns why events of a schema (Avro's JSON as objects) cannot have the header. Pure."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        return ["it is not a record"]
    fields = schema.get("fields") or []
    header = fields[0]["type"] if fields and fields[0]["name"] == "header" else None
    if header is None:
        return ["its first field is not `header`"]
    if not isinstance(header, dict) or header.get("type") != "record":
        return ["its field header is not a record"]
    types = {field["name"]: field["type"] for field in header["fields"]}
    problems = [f"its header lacks the field {name}" for name in FIELDS if name not in types]
    for name in types.keys() & set(FIELDS):
        if name == "time" and not _is_moment(types[name]):
            problems.append(f"header.time is not {_MOMENT}")
        elif name != "time" and _plain(types[name]) != "string":
            problems.append(f"header.{name} is not a string")
    problems += [
        f"header.{field['name']} has no default, and publishers do not set it"
        for field in header["fields"]
        if field["name"] not in FIELDS and "default" not in field
    ]
    return sorted(problems)


def _is_moment(kind: Any) -> bool:
    return isinstance(kind, dict) and (kind.get("type"), kind.get("logicalType")) == (
        "long",
        "timestamp-millis",
    )


def _plain(kind: Any) -> Any:
    return kind.get("type") if isinstance(kind, dict) else kind
