"""A load DAG and a seal DAG for every topic of `topics.yaml`."""

from pathlib import Path

from headrace.airflow.factory import dags_of
from headrace.airflow.topics import read_topics

# Airflow finds DAGs among a module's globals.
globals().update(dags_of(read_topics(Path(__file__).with_name("topics.yaml"))))
