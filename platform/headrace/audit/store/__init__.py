"""The audit store: tables, how records are folded into them, and how it is kept small."""
