"""The working copy that Terraform runs in: the example's HCL, its modules, and its variables for the site.

Owns the folder `terraform` in the site's home, and the check that Terraform can provision the site. A user
can run `terraform plan` in the folder, too. Runs only `terraform version`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headrace.agent.airflow_environment import airflow_python, dags_folder
from headrace.fleet.airflow_database import EXTERNAL, airflow_database
from headrace.fleet.units import BROKER_SETTINGS
from headrace.site.site import POSTGRESQL, SQLITE, Datacenter, Site

ENVIRONMENT_VARIABLE: Final = "HEADRACE_TERRAFORM_ENVIRONMENT"
# The first version in which the validation of a variable may refer to another variable.
VERSION_MIN: Final = (1, 9)
VERSION_TIMEOUT_S: Final = 30.0
_PARTS: Final = ("modules/datacenter", "modules/analysis", "examples/linkedin")
# Other TF_ variables of the user's shell belong to other working copies and would break this one.
_KEPT_VARIABLES: Final = ("TF_LOG", "TF_LOG_PATH")


def sources() -> Path:
    """The checkout's folder of modules and examples."""
    return Path(__file__).parents[4] / "terraform"


def provider_venv() -> Path:
    """The virtual environment of the provider, made by `make terraform`: by default, beside our own."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(named) if named else Path(sys.prefix).parent / ".venv-terraform"


def missing(site: Site) -> str | None:
    """Why Terraform cannot provision this site; None if it can."""
    program = shutil.which("terraform")
    if program is None:
        return "Terraform is not installed"
    command = [program, "version", "-json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, env=process_environment()
    )
    if done.returncode:
        return f"{program} does not run"
    version = json.loads(done.stdout)["terraform_version"]
    if _numbers(version) < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        return f"Terraform {wanted} or newer is needed, and {program} is {version}"
    if not (provider_venv() / "plugins").is_dir():
        return "the Terraform provider is not set up (`make terraform`)"
    if not (sources() / _PARTS[-1]).is_dir():
        return f"the Terraform modules are not installed: there is no {sources()}"
    if _plan_of(site) != _plan_of(Site.one_machine(site.home)):
        return "site.yaml has other datacenters than terraform/examples/linkedin"
    return None


def process_environment() -> dict[str, str]:
    """The environment of a Terraform process: ours, without most TF_ variables."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TF_") or name in _KEPT_VARIABLES
    }
    return {
        **kept,
        "TF_CLI_CONFIG_FILE": str(provider_venv() / "terraform.rc"),
        "TF_IN_AUTOMATION": "1",
        # Otherwise Terraform checks over the network whether there is a newer version.
        "CHECKPOINT_DISABLE": "1",
    }


def terraform_variables_of(site: Site) -> dict[str, Any]:
    """The values of the example's variables. Pure, except that Airflow's paths, and its database, depend on
    what is installed.
    """
    database = airflow_database(site).kind
    return {
        "home": str(site.home),
        **{datacenter.name: _datacenter(datacenter) for datacenter in site.datacenters},
        "broker_settings": dict(BROKER_SETTINGS),
        "airflow": {
            "dags": str(dags_folder().absolute()),
            "python": str(airflow_python().absolute()),
            "job_python": sys.executable,
            "database_url": site.airflow_database if database == EXTERNAL else None,
            "database": SQLITE if database == SQLITE else POSTGRESQL,
        },
    }


def folder_of(site: Site) -> Path:
    """The folder that Terraform runs in for this site."""
    return site.home / "terraform" / _PARTS[-1]


def make_folder(site: Site) -> Path:
    """Brings the working copy up to date, except for its state; returns the folder to run Terraform in."""
    # Its variables and Terraform's state may hold the password of Airflow's database.
    own = site.home / "terraform"
    own.mkdir(parents=True, exist_ok=True)
    own.chmod(0o700)
    for part in _PARTS:
        _copy(sources() / part, own / part)
    folder = folder_of(site)
    (folder / "terraform.tfvars.json").write_text(json.dumps(terraform_variables_of(site), indent=2) + "\n")
    # Makes `terraform plan` by hand find the provider.
    plugins = folder / "terraform.d" / "plugins"
    plugins.parent.mkdir(exist_ok=True)
    plugins.unlink(missing_ok=True)
    plugins.symlink_to((provider_venv() / "plugins").absolute())
    return folder


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    files: Mapping[str, Path] = {path.name: path for path in source.glob("*.tf")}
    for stale in target.glob("*.tf"):
        if stale.name not in files:
            stale.unlink()
    for name, path in files.items():
        shutil.copyfile(path, target / name)


def _datacenter(datacenter: Datacenter) -> dict[str, Any]:
    return {
        "network": datacenter.network,
        "brokers": datacenter.broker_count,
        "broker_settings": dict(datacenter.broker_settings),
    }


def _plan_of(site: Site) -> tuple[object, ...]:
    """The site's datacenters and the mirrors between them."""
    return tuple(datacenter.name for datacenter in site.datacenters), site.mirrors, site.warehouse


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdecimal())
