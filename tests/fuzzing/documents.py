"""JSON documents that look like schemas, and lie in places."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

from fuzzing.values import TEXTS, mutate

SCHEMAS: Final = Path(__file__).parent.parent.parent / "schemas"
PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEPTH_MAX: Final = 5
DEPTH_OF_A_TOWER: Final = 3_000
ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**70,
    1e400,
    "",
    [],
    {},
    "\ud800",
    "NaN",
    ["null"],
    {"type": "fixed"},
)


def known_schemas() -> list[str]:
    """The texts of the schemas that the project has."""
    return [path.read_text() for path in sorted(SCHEMAS.glob("*.avsc"))]


def schema(rng: random.Random, depth: int = 0) -> Any:
    """A schema as JSON's objects; one part in twenty is something else."""
    if rng.random() < 0.05:
        return rng.choice(ODD)
    if depth >= DEPTH_MAX or rng.random() < 0.4:
        return rng.choice(PRIMITIVES)
    kind = rng.randrange(8)
    if kind == 0:
        return [schema(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 3, 60)))]
    if kind == 1:
        return {"type": "array", "items": schema(rng, depth + 1)}
    if kind == 2:
        return {"type": "map", "values": schema(rng, depth + 1)}
    if kind == 3:
        symbols = [rng.choice(("A", "B", "1", *TEXTS)) for _ in range(rng.choice((0, 1, 3)))]
        return {"type": "enum", "name": _name(rng), "symbols": symbols, "default": rng.choice(("A", "Z", 1))}
    if kind == 4:
        return {"type": "fixed", "name": _name(rng), "size": rng.choice((0, 1, 16, -1, 2**40, True, "4"))}
    if kind == 5:
        logical = rng.choice(("decimal", "uuid", "date", "timestamp-millis", "duration", "nonsense"))
        base = rng.choice(PRIMITIVES)
        return {"type": base, "logicalType": logical, "precision": rng.choice((1, 0, -1, 10**6)), "scale": 2}
    return _record(rng, depth)


def body(rng: random.Random) -> bytes:
    """The body of a request that registers or checks a schema."""
    kind = rng.random()
    if kind < 0.1:
        return mutate(rng, json.dumps({"schema": rng.choice(known_schemas())}).encode())
    if kind < 0.13:
        return json.dumps({"schema": _tower(rng)}).encode()
    if kind < 0.15:
        return rng.choice((b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"schema":' * 5_000))
    text = json.dumps(schema(rng)) if kind < 0.8 else rng.choice(known_schemas())
    if kind > 0.9:
        text = mutate(rng, text.encode()).decode("utf-8", "replace")
    document: dict[str, Any] = {"schema": text}
    if rng.random() < 0.15:
        document[rng.choice(("schemaType", "references", "id", "version", "schema", "metadata"))] = (
            rng.choice((*ODD, "AVRO", "JSON", [{"name": "a", "subject": "b", "version": 1}], 99))
        )
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _record(rng: random.Random, depth: int) -> dict[str, Any]:
    fields = []
    for place in range(rng.choice((0, 1, 2, 4))):
        each: dict[str, Any] = {"name": f"f{place}" if rng.random() < 0.9 else _name(rng)}
        each["type"] = schema(rng, depth + 1)
        if rng.random() < 0.4:
            each["default"] = rng.choice(ODD)
        if rng.random() < 0.1:
            each[rng.choice(("aliases", "order", "doc"))] = rng.choice((*ODD, "ascending", ["old"]))
        fields.append(each)
    return {"type": rng.choice(("record", "record", "error")), "name": _name(rng), "fields": fields}


def _name(rng: random.Random) -> Any:
    return rng.choice(("A", "B", "a.b.C", f"R{rng.randrange(1000)}", "A", *TEXTS, 1, None))


def _tower(rng: random.Random) -> str:
    """A schema that nests deeper than programs recurse."""
    depth = rng.choice((150, DEPTH_OF_A_TOWER))
    kind = rng.choice(("array", "record"))
    if kind == "array":
        return '{"type":"array","items":' * depth + '"int"' + "}" * depth
    levels = [f'{{"type":"record","name":"R{n}","fields":[{{"name":"f","type":' for n in range(depth)]
    return "".join(levels) + '"int"' + "}]}" * depth
