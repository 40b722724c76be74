"""`python -m headrace.provider`: Terraform starts it for the duration of one command."""

from __future__ import annotations

import gc
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
    # One Terraform command starts the provider three times in a row, so users wait for every start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.disable()
    # Imported here because these imports are faster without garbage collection.
    from headrace.provider.provider import HeadraceProvider
    from headrace.provider.serving import serve

    gc.enable()
    return serve(HeadraceProvider())


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Skips the interpreter's clean-up, which takes a tenth of a second.
    os._exit(code)
