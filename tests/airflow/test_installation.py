"""The fields of a connection of type headrace, and the errors for missing or invalid ones."""

from pathlib import Path

import pytest

from headrace.airflow.installation import (
    FIELDS,
    ConnectionFieldError,
    Installation,
    parse_installation,
    without_names,
)

PYTHON = "/srv/headrace/.venv/bin/python"
ADDRESSES = {
    "bootstrap": "127.9.0.11:9092,127.9.0.12:9092",
    "registry_url": "http://127.9.0.3:8081",
    "hdfs_url": "hdfs://127.9.0.31:8020",
    "webhdfs_url": "http://127.9.0.31:9870",
    "audit_store": "sqlite:////srv/headrace/audit.db",
}
EXTRA = {**ADDRESSES, "python": PYTHON}


def test_a_valid_connection() -> None:
    installation = parse_installation({**EXTRA, "note": "other fields are ignored"}, conn_id="c")
    assert installation == Installation(python=Path(PYTHON), **ADDRESSES)
    several = "analysis=http://127.9.0.3:8081,http://127.1.0.3:8081"
    assert without_names(several) == "http://127.9.0.3:8081,http://127.1.0.3:8081"
    found = parse_installation({**EXTRA, "zookeeper": "127.9.0.2:2181"}, conn_id="c")
    assert found.zookeeper == "127.9.0.2:2181"
    assert parse_installation({**EXTRA, "registry_url": several}, conn_id="c").registry_url == several
    assert installation.spark_submit == Path("/srv/headrace/.venv/bin/spark-submit")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, "", "  ", 7])
def test_a_missing_field_is_named_with_its_meaning(field: str, value: object) -> None:
    with pytest.raises(ConnectionFieldError, match=f"connection prod has no {field} in its extra \\(.+\\)$"):
        parse_installation({**EXTRA, field: value}, conn_id="prod")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bootstrap", "127.9.0.11", "bootstrap '127.9.0.11' is not HOST:PORT"),
        ("bootstrap", "a:1;b:2", "is not HOST:PORT"),
        ("registry_url", "127.9.0.3:8081", "is not a URL with http:// or https://"),
        ("registry_url", "http://127.9.0.3:8081,127.1.0.3", "is not a URL with http:// or https://"),
        ("webhdfs_url", "hdfs://127.9.0.31:8020", "is not a URL with http:// or https://"),
        ("hdfs_url", "127.9.0.31:8020", "is not a URL with hdfs://"),
        ("python", ".venv/bin/python", "is not an absolute path"),
        ("registry_url", "east=127.9.0.3:8081", "is not a URL with http:// or https://"),
        ("zookeeper", "127.9.0.2", "zookeeper '127.9.0.2' is not HOST:PORT"),
        ("zookeeper", 5, "zookeeper 5 is not HOST:PORT"),
    ],
)
def test_an_invalid_field_is_named_with_its_value(field: str, value: str, message: str) -> None:
    with pytest.raises(ConnectionFieldError, match="connection c: ") as error:
        parse_installation({**EXTRA, field: value}, conn_id="c")
    assert message in str(error.value)
