output "name" {
  description = "The datacenter's name."
  value       = var.name
}

output "bootstrap_servers" {
  description = "The first brokers, HOST:PORT each: for consumers, administration, mirrors."
  value       = local.bootstrap_servers
}

output "brokers" {
  description = "Every broker by its id: host, unit, listen."
  value = {
    for id, broker in headrace_broker.this : id => { host = broker.host, unit = broker.name, listen = broker.listen }
  }
}

output "balancer" {
  description = "The one address that services publish to; null without a balancer."
  value       = one(headrace_balancer.this[*].listen)
}

output "balancer_url" {
  description = "The balancer's page; null without a balancer."
  value       = var.balancer ? "http://${one(headrace_balancer.this[*].status)}/" : null
}

output "registry_url" {
  description = "The schema registry; null without one."
  value       = local.registry_url
}

output "zookeeper" {
  description = "ZooKeeper, HOST:PORT,…"
  value       = local.zookeeper
}

output "topics" {
  description = "Topic by name: its id, how many partitions it has."
  value = {
    for name, topic in headrace_topic.this : name => { topic_id = topic.topic_id, partitions = topic.partitions }
  }
}

# Addresses as planned: what is made of them need not wait until the brokers are there. A mirror waits by itself.
output "source" {
  description = "What the analysis module is told of a datacenter that it mirrors."
  value = {
    name              = var.name
    bootstrap_servers = [for id in local.bootstrap_ids : local.listen["broker-${id}"]]
    registry_url      = var.registry ? "http://${local.listen.registry}" : null
    units             = local.bootstrap_units
  }
}

output "registry_host" {
  description = "The host of the registry."
  value       = local.unit_hosts.registry
}
