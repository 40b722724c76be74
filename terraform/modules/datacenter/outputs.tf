output "name" {
  description = "The datacenter's name."
  value       = var.name
}

output "bootstrap_servers" {
  description = "The bootstrap brokers, HOST:PORT each, for consumers, administration and mirrors."
  value       = local.bootstrap_servers
}

output "brokers" {
  description = "All brokers, by id: host, unit, listen."
  value = {
    for id, broker in headrace_broker.this : id => { host = broker.host, unit = broker.name, listen = broker.listen }
  }
}

output "balancer" {
  description = "The address that services publish to; null without a balancer."
  value       = one(headrace_balancer.this[*].listen)
}

output "balancer_url" {
  description = "The URL of the balancer's page; null without a balancer."
  value       = var.balancer ? "http://${one(headrace_balancer.this[*].status)}/" : null
}

output "registry_url" {
  description = "The URL of the schema registry; null without one."
  value       = local.registry_url
}

output "zookeeper" {
  description = "The ZooKeeper servers, HOST:PORT,…"
  value       = local.zookeeper
}

output "topics" {
  description = "All topics, by name: topic_id, partitions."
  value = {
    for name, topic in headrace_topic.this : name => { topic_id = topic.topic_id, partitions = topic.partitions }
  }
}

# Planned addresses rather than the brokers' attributes: units that use them need not wait for the brokers.
output "source" {
  description = "The input for `sources` of the analysis module, which mirrors this datacenter."
  value = {
    name              = var.name
    bootstrap_servers = [for id in local.bootstrap_ids : local.listen["broker-${id}"]]
    registry_url      = var.registry ? "http://${local.listen.registry}" : null
    units             = local.bootstrap_units
  }
}

output "registry_host" {
  description = "The host of the schema registry."
  value       = local.unit_hosts.registry
}
