"""Sockets: which clients may connect, what is received and sent, links to other brokers."""
