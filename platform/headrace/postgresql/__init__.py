"""The PostgreSQL server of Airflow's database on a site: one supervised process behind a Unix socket.

`python -m headrace.postgresql` runs it, in Airflow's environment, whose wheel of the server serves where
Debian's package is not installed. `installation` owns which programs and which user run it, `cluster` its
data, `place` the folder of its socket. Imports only `process` and the standard library.
"""
