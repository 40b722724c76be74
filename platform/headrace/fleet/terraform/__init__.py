"""The site by Terraform: a working copy of examples/linkedin in its home, and `terraform apply` in it."""

from .apply import apply
from .folder import folder_of, missing
from .said import Said, units_among

__all__ = ["Said", "apply", "folder_of", "missing", "units_among"]
