"""Names each test that fails in a run of several processes at once: pytest names them in its last lines only,
and a run that hangs, or is cut off, has none.
"""

from __future__ import annotations

from typing import Any

import pytest


class NamedAtOnce:
    """Registered in the process that prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            step = "" if report.when == "call" else f", at its {report.when}"
            terminal.write_line("")
            terminal.write_line(f"failed{step}: {report.nodeid}")


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamedAtOnce(config))
