"""Bringing events again that were lost, from where they still are."""
