"""Airflow as part of a site: its units, their configurations, and a site without them."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from headrace.agent.airflow_environment import PYTHON_VARIABLE, AirflowProbe
from headrace.agent.unit import levels
from headrace.fleet.airflow_units import (
    airflow_connections,
    airflow_password,
    airflow_url,
    check_installed,
)
from headrace.fleet.units import units_of
from headrace.site.errors import SiteError, SiteFileError
from headrace.site.site import Site, parse_site

HOME = Path("/srv/headrace")


def airflow(site: Site) -> dict[str, tuple[str, ...]]:
    return {unit.name: unit.command for unit in units_of(site) if unit.kind == "airflow"}


def test_the_components_wait_for_the_api_server_which_waits_for_the_database() -> None:
    site = Site.one_machine(HOME).model_copy(update={"airflow_database": "postgresql"})
    units = [unit for unit in units_of(site) if unit.kind in ("airflow", "postgresql")]
    assert [[unit.name for unit in level] for level in levels(units)] == [
        ["analysis-postgresql"],
        ["analysis-airflow-api-server"],
        ["analysis-airflow-scheduler", "analysis-airflow-dag-processor", "analysis-airflow-triggerer"],
    ]
    assert [str(address) for unit in units for address in unit.listens] == ["127.9.0.7:8080"]
    assert airflow_url(Site.one_machine(HOME)) == "http://127.9.0.7:8080"


def test_the_site_file_leaves_airflow_out_or_names_its_database() -> None:
    assert airflow(parse_site("airflow: false", home=HOME, where="site.yaml")) == {}
    url = "postgresql+psycopg2://airflow@127.0.0.1/airflow"
    site = parse_site(f"airflow_database: {url}", home=HOME, where="site.yaml")
    for unit in (unit for unit in units_of(site) if unit.kind == "airflow"):
        assert url not in unit.command, "everybody may read command lines, and the URL may hold a password"
        assert unit.files[Path(unit.command[-1])] == url
        assert unit.command[-2] == "--database-url-file"
    names = {unit.name for unit in units_of(site)}
    assert "analysis-postgresql" not in names, "an existing server is used as it is"
    sqlite = airflow(parse_site("airflow_database: sqlite", home=HOME, where="site.yaml"))
    assert len(sqlite) == 4
    assert not any("--database-url" in command for command in sqlite.values())
    with pytest.raises(SiteFileError, match=r"line 1: airflow_database: .*'mysql'"):
        parse_site("airflow_database: mysql", home=HOME, where="site.yaml")


def test_the_connection_names_every_registry_that_publishers_use() -> None:
    extra = airflow_connections(Site.one_machine(HOME))["headrace_default"]["extra"]
    assert isinstance(extra, dict)
    assert extra["registry_url"] == (
        "east=http://127.1.0.3:8081,west=http://127.2.0.3:8081,analysis=http://127.9.0.3:8081"
    )
    assert extra["zookeeper"] == "127.9.0.2:2181"
    assert extra["bootstrap"] == "127.9.0.11:9092,127.9.0.12:9092"
    assert extra["webhdfs_url"] == "http://127.9.0.31:9870"


def test_a_site_whose_airflow_is_not_installed_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_AIRFLOW_PYTHON", str(tmp_path / "python"))
    site = Site.one_machine(HOME)
    with pytest.raises(SiteError, match=r"there is no .*/python. Run `make airflow`"):
        check_installed(site)
    check_installed(site.model_copy(update={"airflow": False}))


def test_an_airflow_that_is_half_installed_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network went during `make airflow`: its units ended "No module named 'headrace'", minutes later."""
    python = tmp_path / ".venv-airflow" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    site = Site.one_machine(tmp_path).model_copy(update={"airflow_database": "sqlite"})
    with pytest.raises(SiteError, match=r"not installed: .*/\.venv-airflow is half made. Run `make airflow`"):
        check_installed(site)
    (tmp_path / ".venv-airflow/lib/python3.11/site-packages/headrace-0.1.0.dist-info").mkdir(parents=True)
    check_installed(site)


def test_the_password_is_known_once_it_is_generated(tmp_path: Path) -> None:
    site = Site.one_machine(tmp_path)
    assert airflow_password(site) is None
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "passwords.json").write_text(json.dumps({"admin": "p"}))
    assert airflow_password(site) == "p"
    for damaged in (b"", b"\xff", b"[]", b"{}", b'{"admin": null}', b"[" * 100_000):
        (tmp_path / "airflow" / "passwords.json").write_bytes(damaged)
        with pytest.raises(SiteError, match="does not hold Airflow's password: restore it, or remove it"):
            airflow_password(site)


@pytest.mark.parametrize(
    ("scheduler", "problem"),
    [
        ({"status": "healthy", "age_s": 3}, None),
        ({"status": "healthy", "age_s": 60}, "had its last heartbeat at"),
        (
            {"status": "unhealthy", "age_s": 3},
            "Airflow reports unhealthy of its scheduler; its last heartbeat: 20",
        ),
        ({"status": "unhealthy", "age_s": None}, "Airflow's scheduler has sent no heartbeat yet"),
        ({"status": None, "age_s": None}, "Airflow's scheduler has sent no heartbeat yet"),
        (None, "without Airflow's scheduler"),
    ],
)
def test_a_component_is_ready_while_its_heartbeat_is_recent(
    monkeypatch: pytest.MonkeyPatch, scheduler: dict[str, object] | None, problem: str | None
) -> None:
    body: dict[str, object] = {"metadatabase": {"status": "healthy"}}
    if scheduler is not None:
        age_s = scheduler["age_s"]
        heartbeat = (
            (datetime.now(UTC) - timedelta(seconds=age_s)).isoformat() if isinstance(age_s, int) else None
        )
        body["scheduler"] = {"status": scheduler["status"], "latest_scheduler_heartbeat": heartbeat}
    response = httpx.Response(200, json=body, request=httpx.Request("GET", "http://a"))
    monkeypatch.setattr(httpx, "get", lambda *_args, **_options: response)
    found = AirflowProbe("http://127.9.0.7:8080", "scheduler").check()
    assert found is None if problem is None else problem in str(found)
