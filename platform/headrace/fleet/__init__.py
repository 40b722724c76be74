"""One site on this machine as a whole: its units, and how all of them start and stop.

`units` makes a site's unit configurations, `airflow_units` those of Airflow. `operate` starts and stops the
units through the host's agent, `terraform` provisions the same units by `terraform apply`, and
`airflow_client` triggers DAGs of a running Airflow. Units are started as processes: broker and mirror are
never imported.
"""
