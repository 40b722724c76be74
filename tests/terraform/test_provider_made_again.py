"""A topic that somebody deletes and makes again between Terraform's plan and its apply."""

from __future__ import annotations

import json
import subprocess

import pytest

from fix_broker import StartCluster
from fix_terraform import VENV
from headrace.client import Admin

# The provider's deletion, which begins where a plan has ended. It prints whether its problems are warnings.
DELETION = """
import json, sys, threading
from headrace.provider.resource import Context, ResourceCall
from headrace.provider.topics import TopicResource

call = ResourceCall(threading.Event())
TopicResource(Context()).delete(call, json.loads(sys.argv[1]))
print(json.dumps([problem.is_warning for problem in call.problems]))
"""


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_deletion_deletes_the_topic_that_was_planned_and_no_other_of_its_name(
    terraform: None, broker_cluster: StartCluster, is_made_again: bool
) -> None:
    cluster = broker_cluster()
    with Admin(cluster.bootstrap) as admin:
        planned = {
            "name": "clicks",
            "bootstrap_servers": [cluster.bootstrap],
            "topic_id": str(admin.create_topic("clicks", 1)),
            "allow_data_loss": True,
        }
        if is_made_again:
            admin.delete_topic("clicks")
            admin.create_topic("clicks", 1)
        assert deleted(planned) == [True] * is_made_again
        assert ("clicks" in admin.topics()) is is_made_again
        assert deleted({**planned, "name": "gone"}) == []


def deleted(planned: dict[str, object]) -> list[bool]:
    command = [str(VENV / "bin" / "python"), "-c", DELETION, json.dumps(planned)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    problems: list[bool] = json.loads(done.stdout)
    return problems
