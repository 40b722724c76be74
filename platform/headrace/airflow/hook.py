"""`HeadraceHook`: turns an Airflow connection of type `headrace` into an `Installation`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.sdk import BaseHook

from headrace.airflow.installation import Installation, parse_installation
from headrace.airflow.provider import CONNECTION_TYPE, HOOK_NAME


class HeadraceHook(BaseHook):
    """An installation of headrace: its brokers, its registries, its audit store, its HDFS.

    The connection's extra holds `bootstrap`, `registry_url`, `hdfs_url`, `webhdfs_url`, `audit_store` and
    `python` (see `headrace.airflow.installation`). Raises `ConnectionFieldError` if one is missing or
    invalid.
    """

    conn_name_attr = "headrace_conn_id"
    default_conn_name = "headrace_default"
    conn_type = CONNECTION_TYPE
    hook_name = HOOK_NAME

    def __init__(self, headrace_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.headrace_conn_id = headrace_conn_id

    def get_conn(self) -> Installation:
        """Returns the installation that the connection describes."""
        return self.installation

    @cached_property
    def installation(self) -> Installation:
        connection = self.get_connection(self.headrace_conn_id)
        return parse_installation(connection.extra_dejson, conn_id=self.headrace_conn_id)
