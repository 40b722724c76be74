"""The Terraform provider: datacenters, topics, schemas and loads as resources.

Owns what Terraform is told and asks; knows no process and no disk. Units are the host agents', topics the
brokers', schemas the registries': they are asked over the network, as by any other client. Built on `tf`, in
an environment of its own (`make terraform`).
"""
