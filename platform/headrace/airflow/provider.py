"""The provider's description, for the entry point `apache_airflow_provider`.

See "Custom provider packages" on airflow.apache.org. Imports nothing of Airflow: every Airflow process
imports it.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.airflow.installation import FIELDS

CONNECTION_TYPE: Final = "headrace"
HOOK_NAME: Final = "headrace"


def get_provider_info() -> dict[str, Any]:
    """Returns the description, by Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "headrace",
        "name": "headrace",
        "description": "Exactly-once loads of topics into HDFS, sealed when the audit proves them complete.",
        "integrations": [{"integration-name": "headrace", "external-doc-url": "", "tags": ["service"]}],
        "hooks": [{"integration-name": "headrace", "python-modules": ["headrace.airflow.hook"]}],
        "operators": [{"integration-name": "headrace", "python-modules": ["headrace.airflow.operators"]}],
        "sensors": [{"integration-name": "headrace", "python-modules": ["headrace.airflow.sensors"]}],
        "triggers": [{"integration-name": "headrace", "python-modules": ["headrace.airflow.triggers"]}],
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": "headrace.airflow.hook.HeadraceHook",
                "hook-name": HOOK_NAME,
                "conn-fields": {
                    name: {"label": meaning, "schema": {"type": ["string", "null"]}}
                    for name, meaning in FIELDS.items()
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "port", "schema", "login", "password"],
                    "relabeling": {},
                    "placeholders": {},
                },
            }
        ],
        "extra-links": ["headrace.airflow.links.AuditReportLink"],
    }
