"""headrace's provider for Apache Airflow: a connection type, operators, a sensor, links, the DAGs' factory.

Owns everything that imports `airflow`; it runs in Airflow's own environment (`.venv-airflow`), where PySpark
is not installed: what needs Spark is submitted to the main environment. It holds no warehouse logic.
"""
