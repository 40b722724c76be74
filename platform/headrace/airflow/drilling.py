"""An operator that holds a drill of the audit: `headrace audit drill`, run in the main environment."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperator, Context

from headrace.airflow.hook import HeadraceHook
from headrace.airflow.spark import PythonProgram

CLI_MODULE = "headrace.cli"


class DrillOperator(BaseOperator):
    """Plants failures into the canary topic, and fails if the audit does not name each of them.

    The command finds the installation by its context, as it does for people: on another host than the site's,
    set `headrace_context`, and import it there (`headrace context import`). `timeout`: how long the audit may
    take, such as 5m. `datacenter`: plant only there; empty: in all that have services. A failed drill is not
    repeated: the next one has plants of its own.
    """

    template_fields = ("timeout", "datacenter", "headrace_context")

    def __init__(
        self,
        *,
        timeout: str = "5m",
        datacenter: str = "",
        headrace_context: str | None = None,
        headrace_conn_id: str = HeadraceHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"retries": 0, **kwargs})
        self.timeout = timeout
        self.datacenter = datacenter
        self.headrace_context = headrace_context
        self.headrace_conn_id = headrace_conn_id
        self._running: PythonProgram | None = None

    def execute(self, context: Context) -> None:
        installation = HeadraceHook(self.headrace_conn_id).installation
        arguments = ["audit", "drill", "--timeout", self.timeout, "--store", installation.audit_store]
        if self.datacenter:
            arguments += ["--datacenter", self.datacenter]
        if self.headrace_context:
            arguments += ["--context", self.headrace_context]
        self._running = PythonProgram(installation, arguments=arguments)
        self._running.run_module(CLI_MODULE)

    def on_kill(self) -> None:
        if self._running is not None:
            self._running.kill()
