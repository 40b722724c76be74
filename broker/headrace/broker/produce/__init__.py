"""Produce: batches are checked, staged in their partition's log or passed on to its leader, and answered."""
