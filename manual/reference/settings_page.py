"""The pages of settings: a broker's, a topic's, and the options of the Spark source, from their tables."""

from __future__ import annotations

from typing import Final

from headrace.broker.settings.config import BROKER_SETTINGS, TOPIC_SETTINGS
from headrace.broker.settings.setting import INT_MAX, LONG_MAX, Setting
from headrace.warehouse.source.option_table import OPTIONS
from headrace.warehouse.source.options import KAFKA_COLUMNS, PROBLEM_COLUMN
from reference.markdown import GENERATED, code, escaped, table

SET_OF_A_TOPIC: Final = (
    "`headrace topics create` and `alter` with `-c NAME=VALUE`, or `config` of a `headrace_topic`. A setting "
    "that a topic does not have itself has the value of the broker's setting that the column *default* names."
)
SPARK: Final = (
    '`spark.read.format("headrace")` and `spark.readStream.format("headrace")` have the options, columns and '
    "errors of Spark's own Kafka source, as far as they make sense where offsets are byte addresses."
)


def settings_page() -> str:
    """Returns the page of a broker's and a topic's settings."""
    parts = [
        "# Settings of brokers and topics",
        GENERATED,
        "[Settings of a broker](../settings.md) says more: reasons, and bounds that have no setting.",
        "## Of a broker",
        "`--set NAME=VALUE`, or `broker_settings` of a site, or `settings` of a `headrace_broker`.",
        _table([*BROKER_SETTINGS.values()]),
        "## Of a topic",
        SET_OF_A_TOPIC,
        _table([*TOPIC_SETTINGS.values()]),
    ]
    return "\n\n".join(parts) + "\n"


def spark_page() -> str:
    """Returns the page of the options of the data source `headrace`."""
    rows = [
        (code(option.name), code(option.default), option.reads, escaped(option.doc)) for option in OPTIONS
    ]
    columns = (
        f"Columns are {', '.join(map(code, KAFKA_COLUMNS))}; `includeHeaders` adds `headers`, `onCorrupt` "
        f"`keep` adds `{PROBLEM_COLUMN}`."
    )
    others = "Other options that begin with `kafka.` are ignored; any other is an error that names it."
    return (
        "\n\n".join(
            [
                "# Options of the Spark source",
                GENERATED,
                SPARK,
                table(["option", "default", "for", "meaning"], rows),
                columns,
                others,
            ]
        )
        + "\n"
    )


def _table(settings: list[Setting]) -> str:
    rows = [
        (
            code(setting.name),
            setting.kind.name,
            code(setting.inherits_from or setting.default),
            allowed(setting),
            escaped(setting.doc),
        )
        for setting in settings
    ]
    return table(["setting", "type", "default", "allowed", "meaning"], rows)


def allowed(setting: Setting) -> str:
    """The values that a setting may have; empty if any of its type."""
    if setting.choices:
        return " or ".join(code(choice) for choice in setting.choices)
    if setting.low is not None and setting.low == setting.high:
        return code(str(setting.low))
    if setting.low is not None and setting.high in (INT_MAX, LONG_MAX):
        return f"from {setting.low}"
    if setting.low is not None:
        return f"{setting.low} to {setting.high}"
    return "true or false" if setting.kind.name == "boolean" else ""
