"""What runs as `headrace`, and as `python -m headrace.cli`."""

import signal
import sys


def main() -> None:
    """Runs the command line of this process. Ctrl-C ends it without a traceback from its first moment on."""
    try:
        from headrace.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
