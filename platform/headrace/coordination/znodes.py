"""Every path in ZooKeeper, and the whole tree. No other file spells a path.

Names are Kafka's (0.8 to 3.x) where Kafka has one, so that its tools work. JSON values have `"version": 1`.

    /brokers/ids/<id>                              ephemeral  BrokerRegistration as JSON
    /brokers/topics                                data       empty; its version counts changes of any topic
    /brokers/topics/<topic>                        data       {"topic_id", "partitions": {"0": [1, 2]}}
    /brokers/topics/<topic>/partitions/<p>/state   data       {"leader", "leader_epoch", "isr", "elr"}
    /config/topics/<topic>                         data       {"config": {"retention.ms": "…"}}
    /config/brokers                                data       empty; its version counts changes of any broker
    /config/brokers/<broker id>                    data       {"config": {"headrace.drained": "true"}}
    /latest_producer_id_block                      data       {"block_start", "block_end"} as text, inclusive
    /consumers/<group>/ids/<member>                ephemeral  {"subscription": {"<topic>": <streams>}}
    /consumers/<group>/owners/<topic>/<partition>  ephemeral  the owning member, as text
    /consumers/<group>/offsets/<topic>/<partition> data       the next offset to read, as decimal text
    /consumers/<group>/generation                  data       {"generation_id", "leader_id", "members", …}: by
                                                               Kafka's protocol; empty without members
    /consumers/<group>/idle                        data       {"idle_ms", "looked_ms", "newest_zxid"}: how
                                                               long nobody has used it
    /controller                                    ephemeral  {"broker_id"}: the broker that is the controller
    /controller_epoch                              data       {"epoch", "broker_id"} of the last one elected
    /headrace/registrations/<broker id>            data       empty; its version counts registrations, and
                                                               the nodes of the next line
    /headrace/stopping/<broker id>                 ephemeral  empty: the broker of this session stops
    /headrace/brokers/<broker id>                  data       {"epoch", "directory_id"}: its last registration
                                                               that a controller has handled
    /headrace/disks/<broker id>                    data       {"directory_id", "age"}: how old its disk is
    /headrace/fronts/<broker id>                   ephemeral  {"host", "port"} for balancers to connect to
    /headrace/balanced/<broker id>-<balancer>      ephemeral  empty: this balancer may send it connections
    /headrace/offline/<broker id>-<topic>-<p>      ephemeral  empty: this broker's log is offline
    /headrace/restarting                           ephemeral  {"holder"}: who restarts a broker just now
    /headrace/drill                                ephemeral  the drill that works on the canary's table
    /headrace/mirrors/<topic>                      data       {"partitions": [["east", 0], ["west", 0], …],
                                                               "topic_ids": {"0": source's topic id, …}}
    /headrace/registry/…                           the schema registry's store (headrace.registry.store)

A group's id may be any text, so in a path it is escaped: see `group_element`.
"""

import re
from typing import Final

BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
CONSUMERS: Final = "/consumers"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
REGISTRATIONS: Final = "/headrace/registrations"
STOPPING: Final = "/headrace/stopping"
HANDLED_BROKERS: Final = "/headrace/brokers"
DISKS: Final = "/headrace/disks"
FRONTS: Final = "/headrace/fronts"
BALANCED: Final = "/headrace/balanced"
OFFLINE: Final = "/headrace/offline"
RESTARTING: Final = "/headrace/restarting"
DRILL: Final = "/headrace/drill"
MIRRORS: Final = "/headrace/mirrors"
REGISTRY: Final = "/headrace/registry"


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def registrations(broker_id: int) -> str:
    return f"{REGISTRATIONS}/{broker_id}"


def stopping(broker_id: int) -> str:
    return f"{STOPPING}/{broker_id}"


def handled_broker(broker_id: int) -> str:
    return f"{HANDLED_BROKERS}/{broker_id}"


def disk(broker_id: int) -> str:
    return f"{DISKS}/{broker_id}"


def front(broker_id: int) -> str:
    return f"{FRONTS}/{broker_id}"


def balanced(broker_id: int, balancer: str) -> str:
    return f"{BALANCED}/{broker_id}-{balancer}"


def offline(broker_id: int, topic_name: str, partition_id: int) -> str:
    return f"{OFFLINE}/{broker_id}-{topic_name}-{partition_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, partition_id: int) -> str:
    return f"{TOPICS}/{name}/partitions/{partition_id}"


def partition_state(name: str, partition_id: int) -> str:
    return f"{TOPICS}/{name}/partitions/{partition_id}/state"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config(broker_id: int) -> str:
    return f"{BROKER_CONFIGS}/{broker_id}"


# What may not stand in a path of ZooKeeper (its Java code counts a character beyond U+FFFF as two of
# U+D800 to U+DFFF), and every "%" that would read as the beginning of an escape.
_ESCAPED: Final = re.compile(r"[/\x00-\x1f\x7f-\x9f\ud800-\U0010ffff]|%(?=[0-9A-F]{2})")
_ESCAPES: Final = re.compile(r"(?:%[0-9A-F]{2})+")


def group_element(name: str) -> str:
    """Returns a group's id as one element of a path; an id without odd characters is its own element.

    Each byte of what ZooKeeper refuses becomes %XX. No two ids share an element.
    """
    if name in {".", ".."}:
        return "%2E" * len(name)
    return _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def group_name(element: str) -> str:
    """Returns the group's id of an element of a path."""
    return _ESCAPES.sub(
        lambda found: bytes.fromhex(found[0].replace("%", "")).decode(errors="replace"), element
    )


def group(name: str) -> str:
    return f"{CONSUMERS}/{group_element(name)}"


def members(group: str) -> str:
    return f"{CONSUMERS}/{group_element(group)}/ids"


def member(group: str, member_id: str) -> str:
    return f"{CONSUMERS}/{group_element(group)}/ids/{member_id}"


def group_owners(group: str) -> str:
    return f"{CONSUMERS}/{group_element(group)}/owners"


def owners(group: str, topic_name: str) -> str:
    return f"{CONSUMERS}/{group_element(group)}/owners/{topic_name}"


def owner(group: str, topic_name: str, partition_id: int) -> str:
    return f"{CONSUMERS}/{group_element(group)}/owners/{topic_name}/{partition_id}"


def group_offsets(group: str) -> str:
    return f"{CONSUMERS}/{group_element(group)}/offsets"


def offsets(group: str, topic_name: str) -> str:
    return f"{CONSUMERS}/{group_element(group)}/offsets/{topic_name}"


def offset(group: str, topic_name: str, partition_id: int) -> str:
    return f"{CONSUMERS}/{group_element(group)}/offsets/{topic_name}/{partition_id}"


def generation(group: str) -> str:
    return f"{CONSUMERS}/{group_element(group)}/generation"


def idle(group: str) -> str:
    return f"{CONSUMERS}/{group_element(group)}/idle"


def mirror(topic_name: str) -> str:
    return f"{MIRRORS}/{topic_name}"
