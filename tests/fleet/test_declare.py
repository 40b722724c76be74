"""What topics.yaml declares about producers reaches each datacenter's topics, and changes nothing twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

from headrace.client.admin import Admin
from headrace.client.errors import NetworkError
from headrace.coordination.declared import ANY, PRODUCERS, REPORTING
from headrace.fleet.declare import Declared, declare
from headrace.site.site import Datacenter, Site


class FakeAdmin:
    """One datacenter's topics; None: it does not answer."""

    def __init__(self, topics: dict[str, str] | None) -> None:
        self.topics = topics
        self.altered: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def topic_settings(self, names: Mapping[str, str], _keys: Any) -> dict[str, dict[str, str]]:
        if self.topics is None:
            raise NetworkError("no broker answers")
        return {name: {PRODUCERS: self.topics[name]} for name in names if name in self.topics}

    def alter_configs(self, topic: str, changes: Mapping[str, str]) -> None:
        assert self.topics is not None
        self.topics[topic] = changes[PRODUCERS]
        self.altered.append(topic)


def declared(site: Site, wanted: dict[str, str], admins: dict[str, FakeAdmin]) -> list[Declared]:
    def connect(datacenter: Datacenter) -> Admin:
        return cast(Admin, admins[datacenter.name])

    return list(declare(site, wanted, connect))


def test_only_what_differs_is_changed(tmp_path: Path) -> None:
    site = Site.one_machine(tmp_path)
    admins = {"east": FakeAdmin({"a": REPORTING, "b": ANY}), "west": FakeAdmin({"a": ANY})}
    found = declared(site, {"a": ANY, "b": ANY}, admins)
    assert [(each.datacenter, each.topic, each.changed) for each in found] == [
        ("east", "a", True),
        ("east", "b", False),
        ("west", "a", False),
        ("west", "b", False),
    ]
    assert (admins["east"].altered, admins["west"].altered) == (["a"], [])
    assert [each.problem for each in found][:3] == ["", "", ""]
    assert "west has no topic b yet: `headrace topics create b --producers any -d west`" in found[3].problem
    assert all(not each.changed for each in declared(site, {"a": ANY}, admins))


def test_a_datacenter_that_does_not_answer_holds_up_no_other(tmp_path: Path) -> None:
    admins = {"east": FakeAdmin(None), "west": FakeAdmin({"a": REPORTING})}
    found = declared(Site.one_machine(tmp_path), {"a": ANY}, admins)
    assert "no broker answers" in found[0].problem
    assert (found[1].datacenter, found[1].changed) == ("west", True)
    assert declared(Site.one_machine(tmp_path), {}, {}) == []
