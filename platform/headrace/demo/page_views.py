"""Generates page views like those of a real site. Pure: the same seed gives the same events.

Sessions of members, guests and crawlers begin at random times. Members and pages follow Zipf's law: a few are
very frequent, most are rare. Crawlers read the pages in order.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from headrace.demo.access_log import LoggedView

MEMBER_COUNT: Final = 2_000
PAGE_COUNT: Final = 500
ZIPF_EXPONENT: Final = 1.1
VIEWS_IN_A_SESSION_MEAN: Final = 6.0
DWELL_MEAN_S: Final = 25.0
GUEST_SHARE: Final = 0.35
CRAWLER_SHARE: Final = 0.04

_SECTIONS = ("in", "company", "jobs", "feed", "groups", "learning", "help")
_AGENTS = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/130.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_7) AppleWebKit/605.1.15 Version/18.0 Safari/605.1",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Mobile Safari/604.1",
    "Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 Chrome/130.0 Mobile Safari/537.36",
    "Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0",
)
_CRAWLER = "Mozilla/5.0 (compatible; ExampleBot/2.1; +http://www.example.com/bot.html)"
_ENTRANCES = (
    None,
    None,
    "https://www.example.com/search?q=",
    "https://news.example.org/",
    "android-app://mail/",
)
_STATUSES = ((200, 0.94), (304, 0.03), (404, 0.02), (500, 0.005), (302, 0.005))


def page_views(count: int, *, seed: int, from_ms: int, until_ms: int) -> list[LoggedView]:
    """Returns `count` page views with from_ms <= time < until_ms (Unix ms), in order of time."""
    if count < 0 or until_ms <= from_ms:
        raise ValueError(f"no page views: count {count}, from {from_ms} until {until_ms}")
    random_ = random.Random(seed)
    views: list[LoggedView] = []
    for session in _sessions(random_, from_ms, until_ms):
        views += (view for view in session if view.time_ms < until_ms)
        if len(views) >= count:
            break
    del views[count:]
    return sorted(views, key=lambda view: view.time_ms)


def _sessions(random_: random.Random, from_ms: int, until_ms: int) -> Iterator[list[LoggedView]]:
    member_of = _zipf(MEMBER_COUNT)
    page_of = _zipf(PAGE_COUNT)
    while True:
        start_ms = random_.randrange(from_ms, until_ms)
        if random_.random() < CRAWLER_SHARE:
            first_page = random_.randrange(PAGE_COUNT)
            pages = [(first_page + step) % PAGE_COUNT for step in range(random_.randint(5, 30))]
            yield _session(random_, start_ms, pages, member=None, agent=_CRAWLER, dwell_mean_s=1.0)
            continue
        member = None if random_.random() < GUEST_SHARE else _pick(random_, member_of)
        view_count = 1 + int(random_.expovariate(1 / VIEWS_IN_A_SESSION_MEAN))
        pages = [_pick(random_, page_of) for _ in range(view_count)]
        agent = _AGENTS[(member or 0) % len(_AGENTS)] if member is not None else random_.choice(_AGENTS)
        yield _session(random_, start_ms, pages, member=member, agent=agent, dwell_mean_s=DWELL_MEAN_S)


def _session(
    random_: random.Random,
    start_ms: int,
    pages: list[int],
    *,
    member: int | None,
    agent: str,
    dwell_mean_s: float,
) -> list[LoggedView]:
    # A member always has the same address.
    source = random_ if member is None else random.Random(member)
    host = ".".join(str(source.randint(*span)) for span in ((11, 223), (0, 255), (0, 255), (1, 254)))
    referrer = random_.choice(_ENTRANCES)
    time_ms = start_ms
    views = []
    for page in pages:
        path = f"/{_SECTIONS[page % len(_SECTIONS)]}/{page:04d}"
        status = random_.choices([code for code, _ in _STATUSES], [weight for _, weight in _STATUSES])[0]
        fields: dict[str, Any] = {
            "remote_host": host,
            "member_id": None if member is None else f"member-{member:05d}",
            "method": "GET",
            "path": path,
            "protocol": "HTTP/1.1",
            "status": status,
            "bytes": None if status == 304 else int(random_.lognormvariate(9.0, 0.8)),
            "referrer": referrer,
            "user_agent": agent,
        }
        views.append(LoggedView(time_ms, fields))
        referrer = f"https://www.example.com{path}"
        time_ms += 1 + int(random_.expovariate(1 / dwell_mean_s) * 1000)
    return views


def _zipf(size: int) -> list[float]:
    return list(accumulate(1 / rank**ZIPF_EXPONENT for rank in range(1, size + 1)))


def _pick(random_: random.Random, cumulative: list[float]) -> int:
    return bisect_left(cumulative, random_.random() * cumulative[-1])
