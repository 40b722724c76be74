"""`python -m headrace.cli`: the same as `headrace`."""

from headrace.cli.main import main

if __name__ == "__main__":
    main()
