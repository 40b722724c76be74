"""The link from a task to the audit report of what the task is about.

Owns the report page's address. The page itself is `headrace.airflow.report_page`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink, conf

from headrace.airflow.hours import HourFormatError, hour_key, parse_hour, span
from headrace.airflow.plugin import URL_PREFIX


def report_url(base_url: str, topic: str, hours: Sequence[str]) -> str:
    """The page about these hours of a topic; about all of the topic when no hour is named."""
    url = f"{base_url.rstrip('/')}{URL_PREFIX}/audit/{quote(topic, safe='')}"
    try:
        known = [parse_hour(hour) for hour in hours]
    except HourFormatError:
        known = []
    if not known:
        return url
    start, end = span(known)
    return f"{url}?{urlencode({'from': hour_key(start), 'to': hour_key(end)})}"


class AuditReportLink(BaseOperatorLink):
    """A button "Audit report" on tasks that have a `topic`, and perhaps `hours`."""

    name = "Audit report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        hours = getattr(operator, "hours", None) or []
        return report_url(
            conf.get("api", "base_url", fallback="/"),
            operator.topic,
            [hours] if isinstance(hours, str) else list(hours),
        )
