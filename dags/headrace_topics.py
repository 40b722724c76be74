"""A load DAG and a seal DAG for every topic in `topics.yaml`, but for loads put to this host's agent."""

from pathlib import Path

from headrace.airflow.topic_dags import dags_of
from headrace.airflow.topics import read_loads, read_topics

PUT = read_loads().topics
LISTED = [
    schedule for schedule in read_topics(Path(__file__).with_name("topics.yaml")) if schedule.topic not in PUT
]

# Airflow looks for DAGs among a module's globals.
globals().update(dags_of(LISTED))
