"""How topics are loaded is a part of a home: a restored site loads what the one before did."""

from __future__ import annotations

import json
from pathlib import Path

from fix_log import build
from headrace.agent.home import AgentHome
from headrace.agent.loads import LoadStore
from headrace.backup.restoring import restore
from headrace.backup.taking import Options, take
from headrace.site.site import Site


def test_a_restored_home_loads_the_topics_that_it_loaded(tmp_path: Path) -> None:
    home = tmp_path / "home"
    log = home / "data" / "east" / "broker-1" / "clicks-0"
    log.mkdir(parents=True)
    (log / "partition.json").write_text(json.dumps({"topic_id": "an id"}))
    build(log, [100] * 2, clean=True)
    loads = LoadStore(AgentHome(home).loads)
    loads.put("clicks", {"owner": "web", "schedule": "*/5 * * * *", "retention": "90d"})

    taken = take(Site.load(home), tmp_path / "shelf", Options(hdfs="none"))
    restored = tmp_path / "restored"
    restore(taken.folder, restored)
    assert (restored / "data" / "east" / "broker-1" / "clicks-0").is_dir()
    again = LoadStore(AgentHome(restored).loads)
    assert again.topics() == ["clicks"] and again.load("clicks") == loads.load("clicks")
