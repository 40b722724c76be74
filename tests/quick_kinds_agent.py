"""An agent whose zookeepers, registries and Airflows are stand-ins with the same configuration: they start in
a moment, need no JVM and are ready by themselves. Brokers are real.

`python tests/quick_kinds_agent.py` takes the options of `python -m headrace.agent`.
"""

import sys

from headrace.agent.configuration import (
    AirflowConfiguration,
    Configuration,
    RegistryConfiguration,
    ZooKeeperConfiguration,
)
from headrace.agent.host import Host
from headrace.agent.kinds import KINDS, Kinds, UnitKind
from headrace.agent.unit import UnitProcess
from stand_in_agent import STAND_IN_KINDS, StandIn

PROGRAM = (sys.executable, __file__)


def _stand_in(name: str, configuration: Configuration, host: Host) -> UnitProcess:
    assert isinstance(configuration, ZooKeeperConfiguration | RegistryConfiguration | AirflowConfiguration)
    # The whole configuration is an argument, so that a change restarts the process, as for the real kind.
    value = repr(configuration)[:900]
    stand_in = StandIn(datacenter=configuration.datacenter, listen=configuration.listen, value=value)
    return STAND_IN_KINDS["stand-in"].process(name, stand_in, host)


QUICK_KINDS: Kinds = {
    **KINDS,
    "zookeeper": UnitKind(ZooKeeperConfiguration, _stand_in),
    "registry": UnitKind(RegistryConfiguration, _stand_in),
    "airflow": UnitKind(AirflowConfiguration, _stand_in),
}

if __name__ == "__main__":
    from headrace.agent.__main__ import main

    sys.exit(main(kinds=QUICK_KINDS))
