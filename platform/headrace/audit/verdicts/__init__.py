"""Evidence in, verdicts out: one module for each pair of tiers. Pure."""
