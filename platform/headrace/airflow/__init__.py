"""headrace's provider for Apache Airflow: a connection type, operators, a sensor, links, and topics' DAGs.

Owns everything that imports `airflow`. It runs in Airflow's own environment (`.venv-airflow`), without
PySpark: work that needs Spark is submitted to the main environment. Contains no warehouse logic.
"""
