"""Contexts of clusters that tests started: with one, real commands of `headrace` work on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from fix_audit import MirrorProcess
from fix_broker import BrokerCluster
from fix_hdfs import HdfsProcess
from fix_zookeeper import die_with_parent
from headrace.site.context import Context, ContextDatacenter, ContextMirror
from headrace.site.context_store import ContextStore

NAME: Final = "tested"
COMMAND_MAX_S: Final = 300.0


def save_context(
    home: Path,
    clusters: Iterable[BrokerCluster],
    registries: Mapping[str, str],
    mirrors: Iterable[MirrorProcess],
    store_url: str,
    hdfs: HdfsProcess | None = None,
) -> None:
    """Makes a home whose commands work on these clusters. `registries`: their URLs, by datacenter."""
    datacenters = tuple(
        ContextDatacenter(
            name=each.datacenter,
            bootstrap_servers=tuple(broker.address for broker in each.brokers),
            broker_ids=tuple(broker.broker_id for broker in each.brokers),
            registry_url=registries[each.datacenter],
            zookeeper_servers=each.zookeeper.hosts,
        )
        for each in clusters
    )
    context = Context(
        name=NAME,
        origin="tests",
        datacenters=datacenters,
        mirrors=tuple(
            ContextMirror(
                source=each.source.datacenter, target=each.target.datacenter, status_url=each.status_url
            )
            for each in mirrors
        ),
        warehouse=datacenters[-1].name if hdfs is not None else None,
        hdfs=None if hdfs is None else hdfs.hdfs_url,
        webhdfs=None if hdfs is None else hdfs.webhdfs_url,
        audit_store=store_url,
    )
    home.mkdir(parents=True, exist_ok=True)
    contexts = ContextStore(home)
    contexts.save(context)
    contexts.use(NAME)


def start_command(home: Path, *words: object, **environment: str) -> subprocess.Popen[str]:
    """Starts a command of `headrace` as a process of its own."""
    variables = {**os.environ, "HEADRACE_HOME": str(home), "COLUMNS": "400", **environment}
    variables.pop("HEADRACE_CONTEXT", None)
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        preexec_fn=die_with_parent,
    )


def run_command(home: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of `headrace` to its end."""
    with start_command(home, *words, **environment) as process:
        try:
            out, err = process.communicate(timeout=COMMAND_MAX_S)
        except BaseException:
            process.kill()
            raise
    assert "Traceback" not in out + err, out + err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
