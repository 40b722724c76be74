"""Evidence about one topic and some hours, read from the store. Only reads."""
