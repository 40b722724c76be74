"""`python -m headrace.provider`: started by Terraform, for as long as one command of it."""

from __future__ import annotations

import os
import sys

MAGIC_COOKIE = ("TF_PLUGIN_MAGIC_COOKIE", "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2")


def main() -> int:
    name, value = MAGIC_COOKIE
    if os.environ.get(name) != value:
        print(
            "This is headrace's Terraform provider. Terraform starts it: see docs/terraform.md",
            file=sys.stderr,
        )
        return 1
    from .provider import HeadraceProvider
    from .serving import serve

    return serve(HeadraceProvider())


if __name__ == "__main__":
    sys.exit(main())
