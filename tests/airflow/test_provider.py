"""The provider and the plugin as Airflow itself finds them."""

import json
from importlib.resources import files

import jsonschema
from airflow.providers_manager import ProvidersManager
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from headrace.airflow.installation import FIELDS
from headrace.airflow.provider import get_provider_info


def test_the_description_follows_airflows_schema() -> None:
    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_airflow_finds_the_provider_by_its_entry_point() -> None:
    manager = ProvidersManager()
    assert "headrace" in manager.providers
    assert "headrace.airflow.links.AuditReportLink" in manager.extra_links_class_names
    hook = ProvidersManagerTaskRuntime().hooks["headrace"]
    assert hook is not None
    assert hook.hook_class_name == "headrace.airflow.hook.HeadraceHook"
    assert hook.connection_id_attribute_name == "headrace_conn_id"


def test_the_connection_form_has_a_field_for_each_address() -> None:
    widgets = ProvidersManager().connection_form_widgets
    assert {f"extra__headrace__{name}" for name in FIELDS} <= set(widgets)


def test_every_module_that_the_description_names_is_there() -> None:
    import importlib

    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
