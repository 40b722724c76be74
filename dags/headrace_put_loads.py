"""A load DAG and a seal DAG for every load put to this host's agent (by Terraform, say); they are not paused.

Apart from those of `topics.yaml`: an error in that file takes all DAGs of its own file along.
"""

from headrace.airflow.topic_dags import dags_of
from headrace.airflow.topics import read_loads

# Airflow looks for DAGs among a module's globals.
globals().update(dags_of(read_loads().schedules, starts_paused=False))
