"""The programs that docs/warehouse.md and docs/spark-source.md show run, against a real table and topic."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fix_warehouse import ROOT, TestTopic, World, click
from headrace.site.context import Context, ContextDatacenter
from headrace.site.context_store import ContextStore
from headrace.site.environment_variables import HOME_VARIABLE
from headrace.warehouse.layout import HOUR_MS, parse_hour
from headrace.warehouse.seal import seal_hour

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

REPOSITORY = Path(__file__).parents[2]
PAGE_VIEW = json.loads((REPOSITORY / "schemas" / "page-view.avsc").read_text())
HOUR = parse_hour("2026-11-20T18")


def programs(page: str) -> list[str]:
    found = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / page).read_text(), re.DOTALL)
    return [str(each) for each in found]


def page_view(number: int) -> dict[str, Any]:
    view = click(number, HOUR + number * HOUR_MS // 20)
    more = {"remote_host": "192.0.2.7", "method": "GET", "path": f"/{number}", "status": 200 + number % 2}
    nothing = dict.fromkeys(("member_id", "protocol", "bytes", "referrer", "user_agent"))
    return {"header": view["header"], **more, **nothing}


@pytest.fixture(scope="module")
def views(world: World) -> TestTopic:
    """Page views of 2026-11-20 in the hours 18 and 19, loaded and sealed."""
    topic = world.topic("views")
    topic.publish([page_view(number) for number in range(40)], PAGE_VIEW)
    assert topic.load().rows == 40
    for hour in (HOUR, HOUR + HOUR_MS):
        seal_hour(world.process.webhdfs_url, topic.name, hour, {}, root=ROOT)
    return topic


@pytest.fixture
def site(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a context of this world, in `$HEADRACE_HOME`; sessions of Spark are the tests' own."""
    analysis = ContextDatacenter(
        name="analysis",
        bootstrap_servers=(world.bootstrap,),
        registry_url=world.registry_url,
        zookeeper_servers="127.0.0.1:2181",
    )
    context = Context(
        name="world",
        origin="terraform",
        datacenters=(analysis,),
        warehouse="analysis",
        hdfs=world.process.hdfs_url,
        webhdfs=world.process.webhdfs_url,
    )
    ContextStore(tmp_path).save(context)
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr("headrace.warehouse.session.spark_session", lambda _: world.spark)
    yield "world"


@pytest.mark.parametrize("page", ["warehouse.md", "spark-source.md"])
def test_the_programs_of_a_page_run(
    page: str, views: TestTopic, site: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    web = world.process.webhdfs_url.removeprefix("http://")
    host, _, port = web.partition(":")
    replaced = {
        'connect("site")': f'connect("{site}")',
        "page-view": views.name,
        "127.9.0.31:9870": web,
        'host="127.9.0.31", port=9870': f'host="{host}", port={port}',
        "hdfs://127.9.0.31:8020": world.process.hdfs_url,
        "127.9.0.11:9092": world.bootstrap,
        "http://127.9.0.3:8081": world.registry_url,
    }
    shown = programs(page)
    assert len(shown) >= 3
    results = []
    for program in shown:
        for words, real in replaced.items():
            program = program.replace(words, real)
        assert "127.9." not in program
        names: dict[str, Any] = {}
        exec(compile(program, page, "exec"), names)
        results.append(names)
    printed = capsys.readouterr().out
    if page == "warehouse.md":
        assert len(results[0]["views"]) == 40
        assert results[4]["first"].hours() == ["2026-11-20T18", "2026-11-20T19"]
        assert results[4]["hour"].arrow().num_rows == 20
        assert len(results[5]["views"]) == 40
        assert printed.count("2026-11-20") >= 4
    else:
        assert results[0]["views"].count() == 40
        assert results[1]["views"].count() == 40
        assert sum(progress.numInputRows for progress in results[2]["query"].recentProgress) == 40
