"""No DAGs: an import error that names each load put to this host's agent that cannot be read.

Such a topic has no DAGs until its load is put again. In the file of all topics' DAGs the error would take
those of the others along.
"""

from headrace.airflow.topics import check_loads

check_loads()
