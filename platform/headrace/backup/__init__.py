"""Backups of a home, and homes made of backups: what is copied, in which order, and how a half is recognised.

`headrace backup` and `headrace restore` are its callers. Talks to a running site as its clients do.
"""
