"""Settings of a broker, checked without one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.check_settings import main, problems_of
from headrace.broker.settings.config import BROKER_SETTINGS, BrokerConfig
from headrace.broker.settings.setting import ConfigError


def test_every_wrong_setting_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "num.partitions=0",
        "num.partition=3",
        "nonsense.of.all=1",
        "log.roll.ms=a: b",
        "max.connections=5",
    ]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"setting": "num.partitions", "problem": "must be from 1 to 10000"},
        {
            "setting": "num.partition",
            "problem": "there is no such broker setting; did you mean num.partitions?",
        },
        {
            "setting": "nonsense.of.all",
            "problem": "there is no such broker setting (docs/settings.md lists all)",
        },
        {"setting": "log.roll.ms", "problem": "not a number"},
    ]


@given(
    st.dictionaries(
        st.sampled_from([*BROKER_SETTINGS, "log.roll", "x"]),
        st.integers(-2, 10**6).map(str) | st.sampled_from(["true", "", "LogAppendTime", "10.0.0.1:5"]),
        max_size=4,
    )
)
def test_it_agrees_with_the_broker(settings: dict[str, str]) -> None:
    found = {each["setting"] for each in problems_of(settings)}
    for name, text in settings.items():
        try:
            BrokerConfig({name: text})
        except ConfigError:
            assert name in found
        else:
            assert name not in found
