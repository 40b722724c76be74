"""The link from a task to the audit report of its topic and hours.

Owns the report page's URL. The page itself is `headrace.airflow.report_page`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink, conf

from headrace.airflow.hours import HourFormatError, hour_key, hour_list, parse_hour, span
from headrace.airflow.plugin import URL_PREFIX


def report_url(base_url: str, topic: str, hours: Sequence[str]) -> str:
    """Returns the URL of the report on these hours of a topic; on all of it if no hour is valid."""
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
    """A button "Audit report" on tasks with a `topic`, and perhaps `hours`."""

    name = "Audit report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        base_url = conf.get("api", "base_url", fallback="/")
        return report_url(base_url, operator.topic, hour_list(getattr(operator, "hours", None) or []))
