"""What the attributes of units are for, in words.

Owns the words alone: which attributes there are, and what they may hold, comes from the models of
`agent.configuration`. A test sees to it that none is without.
"""

from __future__ import annotations

from typing import Final

_COMMON: Final = {
    "datacenter": "The datacenter that the unit belongs to.",
    "requires": "Units of the same host that must be ready before this one is started again after a crash.",
    "data_dir": "An absolute path on the host; left out, below the agent's home, by the unit's name.",
    "zookeeper": "The datacenter's ZooKeeper: HOST:PORT, several with commas, then a path if there is one.",
    "listen": "HOST:PORT where it listens.",
    "status": "HOST:PORT where it answers how it is.",
}
_BY_KIND: Final = {
    "zookeeper": {"heap_mib_max": "The most memory of its JVM, in MiB."},
    "broker": {
        "broker_id": "The broker's number, its own in the datacenter.",
        "advertise": "HOST:PORT that clients are told; left out, `listen`.",
        "front_listen": "HOST:PORT where the balancer connects to; goes with `front_advertise`.",
        "front_advertise": "The balancer's own address, which producers behind it are told.",
        "settings": "Settings by Kafka's names, such as num.partitions.",
    },
    "balancer": {
        "listen": "HOST:PORT that producers are given.",
        "status": "HOST:PORT of its page, and of its status for programs.",
        "statistics": "HOST:PORT of HAProxy's own page; left out, there is none.",
        "engine": "auto (HAProxy where it is installed), haproxy or embedded.",
        "connections_max": "The most connections at a time.",
    },
    "mirror": {
        "datacenter": "The datacenter that is copied into.",
        "source": "The datacenter that is copied.",
        "source_bootstrap": "Its brokers.",
        "target_bootstrap": "The brokers that are copied into.",
        "target_zookeeper": "Their ZooKeeper.",
        "registry_url": "Their datacenter's schema registry, for records of gaps.",
        "topics": "A regular expression: topics to copy; left out, all.",
        "exclude": "A regular expression: topics not to copy.",
    },
    "auditor": {
        "bootstrap": "The brokers whose logs are counted.",
        "registry_urls": "Schema registries: the datacenter's own first, then those of mirrored datacenters.",
        "mirrors_zookeeper": "The ZooKeeper that knows whose copy each partition is: of a mirrored-into one.",
        "store": "The audit store, an SQLAlchemy URL: this auditor folds into it what all have said.",
        "keep_days": "How long the store keeps hours; left out, for ever.",
    },
    "hdfs": {
        "host": "The address that NameNode and DataNode listen on.",
        "rpc_port": "The NameNode's port, of hdfs:// URLs.",
        "http_port": "The NameNode's WebHDFS.",
        "data_port": "The DataNode's port for data.",
        "data_ipc_port": "The DataNode's port for calls.",
        "data_http_port": "The DataNode's HTTP.",
        "settings": "Settings by Hadoop's names.",
    },
    "airflow": {
        "component": "api-server, scheduler, dag-processor or triggerer: one resource each.",
        "listen": "HOST:PORT of the api-server, said to all components.",
        "home": "Airflow's home on the host, the same for all components; left out, in the agent's home.",
        "dags": "The folder of DAGs on the host; left out, headrace's own.",
        "python": "The interpreter of Airflow's environment on the host; left out, the host's own.",
        "database_url": "An SQLAlchemy URL; left out, an SQLite file in `home`.",
    },
}


def description_of(kind: str, field: str) -> str:
    """What a field of a kind is for; empty for one that nobody has put into words."""
    return _BY_KIND.get(kind, {}).get(field) or _COMMON.get(field, "")
