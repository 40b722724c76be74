"""Provisions the site by `terraform apply`, in a working copy of examples/linkedin in the site's home."""

from headrace.fleet.terraform.apply import apply
from headrace.fleet.terraform.folder import folder_of, missing
from headrace.fleet.terraform.progress import TerraformProgress

__all__ = ["TerraformProgress", "apply", "folder_of", "missing"]
