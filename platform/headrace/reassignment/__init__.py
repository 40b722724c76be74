"""Replicas on their way to other brokers: what is to move (pure plans), and the move, in bounded steps."""
