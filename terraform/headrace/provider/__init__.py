"""The Terraform provider: datacenters, topics, schemas and loads as resources.

Owns what Terraform plans and applies; it starts no process and writes no files. It reaches everything over
the network as any client does: units through their hosts' agents, topics through brokers, schemas through
registries. Built on `tf`, in an environment of its own (`make terraform`).
"""
