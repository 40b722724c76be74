"""Who leads which partition: the controller, its decisions, and how a broker gives its partitions away."""
