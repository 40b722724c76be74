"""The audit report: as values, for people, and the command that repairs each finding."""
