"""`HeadraceHook`: turns an Airflow connection of type `headrace` into an `Installation`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from headrace.airflow.installation import Installation, parse_installation
from headrace.airflow.provider import CONNECTION_TYPE, HOOK_NAME
from headrace.audit.store.store import StoreError, parsed_url, shown_url


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
        installation = parse_installation(connection.extra_dejson, conn_id=self.headrace_conn_id)
        if _has_password(installation.audit_store):
            # Programs get it as an option, and their command lines are logged.
            mask_secret(installation.audit_store)
        return installation


def _has_password(store_url: str) -> bool:
    try:
        parsed = parsed_url(store_url)
    except StoreError:
        return True  # nobody knows what it holds
    return shown_url(parsed) != parsed.render_as_string(hide_password=False)
