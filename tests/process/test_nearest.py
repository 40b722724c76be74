"""The name that was meant: for settings and fields that a user mistypes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.agent.errors import ConfigurationError
from headrace.agent.kinds import parse_configuration
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.settings.setting import ConfigError
from headrace.process.nearest import COMPARED_MAX, nearest, question
from headrace.site.errors import SiteFileError
from headrace.site.site import Site
from headrace.warehouse.schedule import LoadScheduleError, parse_schedule


def test_the_nearest_name_is_found() -> None:
    known = ["retention.ms", "retention.bytes", "segment.bytes"]
    assert nearest("retention.mss", known) == "retention.ms"
    assert nearest("RETENTION.MS", known) == "retention.ms"
    assert nearest("colour", known) is None
    assert question("segment.byte", known) == "; did you mean 'segment.bytes'?"
    assert question("colour", known) == ""


def test_a_name_of_any_length_takes_no_long_time() -> None:
    began_s = time.process_time()
    assert nearest("x" * 10_000_000, ["retention.ms"]) is None
    assert nearest("name-7", (f"name-{number}" for number in range(2 * COMPARED_MAX))) is not None
    assert time.process_time() - began_s < 10


def test_a_brokers_setting_a_units_field_and_a_loads_field_are_named() -> None:
    with pytest.raises(ConfigError, match=r"'log.retention.byte'; did you mean 'log.retention.bytes'\?"):
        BrokerConfig({"log.retention.byte": "1"})
    with pytest.raises(ConfigurationError, match=r"did you mean 'listen'\?"):
        parse_configuration("unit", {"kind": "zookeeper", "listenn": "127.0.0.1:1"})
    with pytest.raises(LoadScheduleError, match=r"unknown field 'ownr'; did you mean 'owner'\?"):
        parse_schedule("t", {"ownr": "web"})


def test_a_field_of_site_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("warehous: analysis\n")
    with pytest.raises(SiteFileError, match=r"line 1: warehous: .*; did you mean 'warehouse'\?"):
        Site.load(tmp_path)
