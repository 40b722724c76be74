"""The site file and the address plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.agent.unit import levels
from headrace.fleet.units import units_of
from headrace.site.errors import SiteError, SiteFileError
from headrace.site.site import Site, parse_site

HOME = Path("/nowhere/headrace")


def test_the_default_site_is_three_datacenters_on_loopback() -> None:
    site = Site.one_machine(HOME)
    assert [dc.name for dc in site.datacenters] == ["east", "west", "analysis"]
    assert str(site.datacenter("east").zookeeper) == "127.1.0.2:2181"
    assert site.datacenter("west").bootstrap == "127.2.0.11:9092,127.2.0.12:9092,127.2.0.13:9092"
    assert site.datacenter("west").producer_bootstrap == "127.2.0.3:9092"
    assert site.analysis.bootstrap == "127.9.0.11:9092,127.9.0.12:9092"
    assert [dc.name for dc in site.sources] == ["east", "west"]
    assert site.hdfs_url == "hdfs://127.9.0.31:8020"


def test_a_block_moves_every_address() -> None:
    here, there = Site.one_machine(HOME), Site.one_machine(HOME / "other", block=110)
    assert there.datacenter("east").zookeeper.host == "127.111.0.2"
    taken = {address for unit in units_of(here) for address in unit.listens}
    assert not taken & {address for unit in units_of(there) for address in unit.listens}


def test_no_two_units_share_an_address() -> None:
    listens = [address for unit in units_of(Site.one_machine(HOME)) for address in unit.listens]
    assert len(listens) == len(set(listens))


def test_every_unit_but_databases_and_airflows_workers_has_a_page() -> None:
    units = units_of(Site.one_machine(HOME))
    pages = {unit.name: unit.page_url for unit in units if unit.page_url is not None}
    assert {unit.kind for unit in units if unit.name not in pages} == {
        "zookeeper",
        "postgresql",
        "airflow",
    }
    assert pages["east-broker-2"] == "http://127.1.0.12:8085/"
    assert pages["east-balancer"] == "http://127.1.0.3:8084/"
    assert pages["analysis-mirror-west"] == "http://127.9.0.22:8083/"
    assert pages["analysis-hdfs"] == "http://127.9.0.31:9870/"
    assert all(url[len("http://") : -1] in map(str, unit.listens) for unit in units if (url := unit.page_url))


def test_units_start_after_what_they_require() -> None:
    grouped = levels(units_of(Site.one_machine(HOME)))
    level_of = {unit.name: number for number, group in enumerate(grouped) for unit in group}
    for group in grouped:
        for unit in group:
            assert all(level_of[name] < level_of[unit.name] for name in unit.requires)
    assert level_of["east-zookeeper"] == level_of["analysis-hdfs"] == 0
    assert level_of["analysis-mirror-west"] > level_of["west-broker-3"]
    assert level_of["west-balancer"] > level_of["west-broker-3"]


def test_services_of_a_source_publish_through_its_balancer() -> None:
    site = Site.one_machine(HOME)
    units = {unit.name: unit for unit in units_of(site)}
    assert {name for name, unit in units.items() if unit.kind == "balancer"} == {
        "east-balancer",
        "west-balancer",
    }
    broker = " ".join(units["east-broker-2"].command)
    assert "--front-listen 127.1.0.12:9093 --front-advertise 127.1.0.3:9092" in broker
    assert "--front-listen" not in units["analysis-broker-1"].command


def test_an_empty_site_file_is_the_default() -> None:
    assert parse_site("", home=HOME, where="site.yaml") == Site.one_machine(HOME)


def test_a_site_file_with_all_fields() -> None:
    text = """
    datacenters:
      east: {network: 127.106.1, broker_count: 1, broker_settings: {num.partitions: "2"}}
      analysis: {network: 127.106.9, broker_count: 1}
    mirrors: [{source: east, target: analysis}]
    """
    site = parse_site(text, home=HOME, where="site.yaml")
    assert [dc.name for dc in site.sources] == ["east"]
    broker = next(unit for unit in units_of(site) if unit.name == "east-broker-1")
    assert "num.partitions=2" in broker.command


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("block: [", "not YAML"),
        ("block: 999", "block"),
        ("blocks: 1", "blocks"),
        ("warehouse: north", "'north' is not a datacenter"),
        ("mirrors: [{source: north, target: analysis}]", "'north' is not a datacenter"),
        ("datacenters: {analysis: {network: 10.0.0}}", "network"),
        (
            "{datacenters: {analysis: {network: 127.5.0}, east: {network: 127.5.0}}, mirrors: []}",
            "share the network",
        ),
        (
            "{datacenters: {analysis: {network: 127.5.0}, east: {network: 127.05.0}}, mirrors: []}",
            "without leading zeros (its value is '127.05.0')",
        ),
        ("datacenters: {analysis: {network: 127.300.0}}", "numbers from 0 to 255"),
        (
            "mirrors: [{source: east, target: analysis}, {source: west, target: west}]",
            "mirrors.1: source and target are both 'west'",
        ),
        (
            "mirrors: [{source: east, target: analysis}, {source: east, target: analysis}]",
            "mirrors.1: mirror 0 copies east into analysis already",
        ),
    ],
)
def test_a_wrong_site_file_is_one_line_that_names_the_field(text: str, words: str) -> None:
    with pytest.raises(SiteFileError) as caught:
        parse_site(text, home=HOME, where="/etc/site.yaml")
    message = str(caught.value)
    assert words in message
    assert "/etc/site.yaml" in message
    assert "\n" not in message


WRONG_SITE = """\
block: 3

datacenters:
  east: {network: 127.1.0, broker_count: 3}
  west:
    network: 127.1.0
    broker_count: 30
    broker_settings:
      num.partitions: 3
  North: {network: 10.0.0}
mirrors:
  - {source: east, target: analysis}
  - {source: south, target: analysis}
warehouse: analysis
"""


def test_every_wrong_field_is_named_with_its_line_and_datacenter() -> None:
    with pytest.raises(SiteFileError) as caught:
        parse_site(WRONG_SITE, home=HOME, where="/etc/site.yaml")
    message = str(caught.value)
    assert message.startswith("site file /etc/site.yaml: line 7: datacenters.west.broker_count: ")
    assert "(its value is 30)" in message
    assert "; line 9: datacenters.west.broker_settings.num.partitions: " in message
    assert "; line 10: datacenters.North.name: " in message
    assert "; line 10: datacenters.North.network: " in message
    assert "\n" not in message


def test_contradictions_have_lines_too() -> None:
    text = WRONG_SITE.replace("30", "3").replace("num.partitions: 3", 'num.partitions: "3"')
    text = text.replace("  North: {network: 10.0.0}\n", "")
    with pytest.raises(SiteFileError) as caught:
        parse_site(text, home=HOME, where="/etc/site.yaml")
    message = str(caught.value)
    assert "line 6: datacenters.west.network: west and east share the network 127.1.0" in message
    assert "line 13: warehouse: 'analysis' is not a datacenter; there are east, west" in message
    assert "line 12: mirrors.1.source: 'south' is not a datacenter" in message


def test_a_file_that_holds_itself_has_an_end() -> None:
    with pytest.raises(SiteFileError, match=r"&a that holds itself \(line 1\)"):
        parse_site("datacenters: &a {east: *a}", home=HOME, where="/etc/site.yaml")


def test_an_unknown_datacenter_is_named_with_the_known_ones() -> None:
    with pytest.raises(SiteError, match="'north' is not part of this site; it has east, west, analysis"):
        Site.one_machine(HOME).datacenter("north")


def test_the_home_comes_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("block: 110")
    site = Site.load(environment={"HEADRACE_HOME": str(tmp_path)})
    assert site.home == tmp_path
    assert site.datacenter("east").network == "127.111.0"
