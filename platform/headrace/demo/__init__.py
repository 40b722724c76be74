"""The demo: every step of the way from a service to the audit report, on the site of this machine.

`main` runs the steps of `run` and `flow` and prints the result by `ending`. `service`, `reader` and `watcher`
are its processes, which `processes` starts and which send their progress by `child`. `loads` loads and seals
through Airflow's DAGs. The demo promises an exit code: 0 only if every event is in HDFS once and every hour
that it touched is sealed, unless an earlier run has lost events of that hour.
"""
