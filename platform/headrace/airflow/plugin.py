"""The plugin that adds headrace's audit report to Airflow's web server, and bounds the bodies that it takes.

Owns the plugin's registration. Every process of Airflow imports this module, even that of each task, so the
page itself is imported at its first request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar, Final

from airflow.plugins_manager import AirflowPlugin

from headrace.airflow.body_limit import BodyLimit

URL_PREFIX: Final = "/headrace"

Message = MutableMapping[str, Any]


async def report_app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """The ASGI application of `headrace.airflow.report_page`."""
    from headrace.airflow.report_page import app

    await app(scope, receive, send)


class HeadracePlugin(AirflowPlugin):
    """Serves the audit report below `/headrace`, and links to it in the side bar."""

    name = "headrace"
    fastapi_apps: ClassVar[list[Any]] = [
        {"app": report_app, "url_prefix": URL_PREFIX, "name": "headrace audit report"}
    ]
    fastapi_root_middlewares: ClassVar[list[Any]] = [
        {"middleware": BodyLimit, "args": [], "kwargs": {}, "name": "headrace bound of bodies"}
    ]
    external_views: ClassVar[list[Any]] = [
        {
            "name": "Audit",
            "href": f"{URL_PREFIX}/audit",
            "destination": "nav",
            "category": "browse",
            "url_route": "headrace-audit",
        }
    ]
