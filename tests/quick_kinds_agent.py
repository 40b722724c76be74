"""An agent whose zookeepers, registries and Airflows are stand-ins of the same configuration: they start in a
moment, need no JVM, and are ready by themselves. Brokers are real.

`python tests/quick_kinds_agent.py` takes the options of `python -m headrace.agent`.
"""

import sys
from dataclasses import replace

from headrace.agent.configuration import (
    Airflow,
    Configuration,
    Registry,
    ZooKeeper,
)
from headrace.agent.kinds import (
    KINDS,
    Host,
    Kind,
    Kinds,
)
from headrace.agent.unit import Unit
from stand_in_agent import STAND_IN_KINDS, StandIn

PROGRAM = (sys.executable, __file__)


def _stand_in(name: str, said: Configuration, host: Host) -> Unit:
    assert isinstance(said, ZooKeeper | Registry | Airflow)
    # Another configuration is another process, as with the real one.
    configuration = StandIn(datacenter=said.datacenter, listen=said.listen, value=repr(said)[:900])
    return replace(STAND_IN_KINDS["stand-in"].make(name, configuration, host), kind=said.kind)


QUICK_KINDS: Kinds = {
    **KINDS,
    "zookeeper": Kind(ZooKeeper, _stand_in),
    "registry": Kind(Registry, _stand_in),
    "airflow": Kind(Airflow, _stand_in),
}

if __name__ == "__main__":
    from headrace.agent.__main__ import main

    sys.exit(main(kinds=QUICK_KINDS))
