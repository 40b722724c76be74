"""The pages of `make docs` that are made from the code: commands, settings, options, codes, figures."""
