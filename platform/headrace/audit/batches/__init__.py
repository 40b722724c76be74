"""What an auditor learns from one batch of a log: tallies, times of foreign records, damage."""
