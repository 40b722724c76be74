"""The demo: every step from a service to the audit report, on the site of this machine.

`main` runs the steps of `run` and `flow` and prints the result through `ending`. `processes` starts its
processes `service`, `reader` and `watcher`, which send their progress through `child`. `loads` loads and
seals through Airflow's DAGs. The exit code is 0 only if every event is in HDFS once and every hour that has
events of this run is sealed, unless an earlier run has lost events of that hour.
"""
