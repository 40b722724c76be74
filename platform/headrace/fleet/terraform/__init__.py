"""The site by Terraform: a working copy of examples/linkedin in its home, and `terraform apply` in it."""

from headrace.fleet.terraform.apply import apply
from headrace.fleet.terraform.folder import folder_of, missing
from headrace.fleet.terraform.said import Said, units_among

__all__ = ["Said", "apply", "folder_of", "missing", "units_among"]
