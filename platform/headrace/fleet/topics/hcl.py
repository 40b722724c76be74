"""The same topic as Terraform's resources, for an installation that Terraform manages. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.coordination.declared import REPORTING
from headrace.fleet.topics.deciding import PARTITIONS_DEFAULT
from headrace.fleet.topics.present import origins_of
from headrace.fleet.topics.wanted import NewTopic
from headrace.site.context import Context, ContextDatacenter

INDENT: Final = 2


def blocks(wanted: NewTopic, context: Context) -> str:
    """Returns a whole file of HCL: the topic and its schema in each datacenter of services, and the load."""
    origins = origins_of(context)
    label = re.sub(r"[^A-Za-z0-9_-]", "_", wanted.name)
    label = label if label[:1].isalpha() else f"topic_{label}"
    parts = [
        f"# Topic {wanted.name} of {context.name}: save this beside {wanted.schema.path.name}, and apply it.",
        "# Where the modules `datacenter` and `analysis` make the datacenters, the same can be an entry of",
        "# their `topics` and `loads` instead.",
        "",
        *_topic(wanted, origins, label),
        *_schema(wanted, origins, label),
        *(_load(wanted, label) if context.airflow_url else ["# There is no Airflow, which would load it."]),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _topic(wanted: NewTopic, origins: tuple[ContextDatacenter, ...], label: str) -> Iterator[str]:
    attributes: dict[str, str] = {
        "bootstrap_servers": "each.value",
        "name": text(wanted.name),
        "partitions": str(wanted.partitions or PARTITIONS_DEFAULT),
    }
    if wanted.replication_factor is not None:
        attributes["replication_factor"] = str(wanted.replication_factor)
    if wanted.settings:
        pairs = ", ".join(f"{text(name)} = {text(value)}" for name, value in sorted(wanted.settings.items()))
        attributes["config"] = f"{{ {pairs} }}"
    if wanted.producers not in (None, REPORTING):
        attributes["producers"] = text(str(wanted.producers))
    each = {origin.name: _texts(origin.bootstrap_servers) for origin in origins}
    yield from _resource("headrace_topic", label, each, attributes)


def _schema(wanted: NewTopic, origins: tuple[ContextDatacenter, ...], label: str) -> Iterator[str]:
    attributes = {
        "registry_url": "each.value",
        "subject": text(wanted.subject),
        "schema": f'file("${{path.module}}/{wanted.schema.path.name}")',
    }
    if wanted.compatibility is not None:
        attributes["compatibility"] = text(wanted.compatibility)
    each = {origin.name: text(origin.registry_url) for origin in origins if origin.registry_url}
    yield from _resource("headrace_schema", label, each, attributes)


def _load(wanted: NewTopic, label: str) -> Iterator[str]:
    yield "# host: a key of the provider's `agents`, the host that runs Airflow."
    attributes = {"host": text("local"), "topic": text(wanted.name)}
    attributes |= {name: _value(value) for name, value in wanted.load_fields.items() if value is not None}
    yield from _resource("headrace_load", label, {}, attributes)


def _resource(kind: str, label: str, each: Mapping[str, str], attributes: Mapping[str, str]) -> Iterator[str]:
    yield f'resource "{kind}" "{label}" {{'
    if each:
        yield "  for_each = {"
        yield from _aligned(each, 2 * INDENT)
        yield "  }"
        yield ""
    yield from _aligned(attributes, INDENT)
    yield "}"
    yield ""


def _aligned(attributes: Mapping[str, str], indent: int) -> Iterator[str]:
    width = max(map(len, attributes))
    for name, value in attributes.items():
        yield f"{' ' * indent}{name:<{width}} = {value}"


def _texts(values: tuple[str, ...]) -> str:
    return f"[{', '.join(map(text, values))}]"


def _value(value: Any) -> str:
    return text(value) if isinstance(value, str) else json.dumps(value)


def text(value: str) -> str:
    """Returns a string of HCL, in which nothing is a template."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")
