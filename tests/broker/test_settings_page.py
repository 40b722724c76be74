"""docs/settings.md lists every setting of a broker with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.broker.network.connection_limits import (
    DESCRIPTORS_FOR_FILES_MIN,
    ConnectionLimits,
    leave_descriptors,
)
from headrace.broker.settings.config import BROKER_SETTINGS, BrokerConfig
from headrace.broker.settings.setting import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_has_every_setting() -> None:
    rows = dict(re.findall(r"^\| `([a-z.]+)` \| (\S*) ?\|", PAGE.read_text(), re.MULTILINE))
    settings = {setting.name: setting.default for setting in BROKER_SETTINGS.values()}
    missing = [
        f"| `{setting.name}` | {setting.default} | {setting.doc} |"
        for setting in BROKER_SETTINGS.values()
        if rows.get(setting.name) != setting.default
    ]
    assert not missing, "add these lines to docs/settings.md"
    assert not rows.keys() - settings.keys(), "the broker does not have these settings"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("127.0.0.1", "ADDRESS:COUNT"),
        ("localhost:5", "names are not resolved"),
        ("127.0.0.1:-1", "0 or more"),
    ],
)
def test_overrides_that_cannot_be_meant_are_explained(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        BrokerConfig({"max.connections.per.ip.overrides": text})


def test_overrides() -> None:
    config = BrokerConfig({"max.connections.per.ip.overrides": "127.0.0.1:5, [::1]:0"})
    limits = ConnectionLimits.of(config.__getitem__)
    assert limits.connections_per_ip_overrides == {"127.0.0.1": 5, "::1": 0}


def test_connections_leave_descriptors_for_logs(caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimits.of(BrokerConfig().__getitem__)
    assert leave_descriptors(limits, 1 << 20) is limits
    assert leave_descriptors(limits, -1) is limits, "without a limit"
    assert not caplog.text
    assert leave_descriptors(limits, 1_024).connections_max == 768
    assert "max.connections=10000 is more than this process may have" in caplog.text
    assert leave_descriptors(limits, DESCRIPTORS_FOR_FILES_MIN).connections_max == 1
