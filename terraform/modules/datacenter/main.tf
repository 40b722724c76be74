# Where each unit is and listens. Nothing here depends on how many brokers there are but the brokers themselves,
# so that one more, or one less, restarts nothing.
locals {
  hosts   = { for host in var.hosts : host.agent => host }
  brokers = { for number in range(1, var.brokers + 1) : tostring(number) => "${var.name}-broker-${number}" }

  broker_hosts = {
    for id in keys(local.brokers) :
    id => lookup(var.placement, "broker-${id}", var.hosts[(tonumber(id) - 1) % length(var.hosts)].agent)
  }
  unit_hosts = {
    for unit in ["zookeeper", "registry", "balancer", "auditor"] :
    unit => lookup(var.placement, unit, var.hosts[0].agent)
  }

  # On a host with a network of its own: the number of the address, and the port. With one address: the port.
  in_network = {
    zookeeper           = { unit = "zookeeper", number = 2, port = 2181 }
    registry            = { unit = "registry", number = 3, port = 8081 }
    balancer            = { unit = "balancer", number = 3, port = 9092 }
    balancer-status     = { unit = "balancer", number = 3, port = 8084 }
    balancer-statistics = { unit = "balancer", number = 3, port = 8404 }
    auditor             = { unit = "auditor", number = 4, port = 8082 }
  }
  on_address = {
    zookeeper           = 2181
    registry            = 8081
    balancer            = 9090
    balancer-status     = 9091
    balancer-statistics = 8404
    auditor             = 8082
  }
  # How many brokers with a lower id the host has.
  broker_turns = {
    for id, host in local.broker_hosts :
    id => length([for other, its in local.broker_hosts : other if its == host && tonumber(other) < tonumber(id)])
  }

  planned = merge(
    {
      for what, place in local.in_network :
      what => (
        local.hosts[local.unit_hosts[place.unit]].network == null
        ? "${local.hosts[local.unit_hosts[place.unit]].address}:${local.on_address[what]}"
        : "${local.hosts[local.unit_hosts[place.unit]].network}.${place.number}:${place.port}"
      )
    },
    {
      for id, host in local.broker_hosts :
      "broker-${id}" => (
        local.hosts[host].network == null
        ? "${local.hosts[host].address}:${9092 + 2 * local.broker_turns[id]}"
        : "${local.hosts[host].network}.${10 + tonumber(id)}:9092"
      )
    },
    {
      for id, host in local.broker_hosts :
      "front-${id}" => (
        local.hosts[host].network == null
        ? "${local.hosts[host].address}:${9093 + 2 * local.broker_turns[id]}"
        : "${local.hosts[host].network}.${10 + tonumber(id)}:9093"
      )
    },
  )
  listen = merge(local.planned, var.listen)

  data_dirs = {
    for unit in concat(["zookeeper", "balancer"], [for id in keys(local.brokers) : "broker-${id}"]) :
    unit => var.data_dir == null ? null : "${var.data_dir}/${unit}"
  }

  bootstrap_ids = [for number in range(1, min(var.brokers, var.bootstrap_brokers) + 1) : tostring(number)]
  # What a unit may require is what its own host has.
  bootstrap_units = { for id in local.bootstrap_ids : local.brokers[id] => local.broker_hosts[id] }
}

resource "headrace_zookeeper" "this" {
  count = var.zookeeper == null ? 1 : 0

  host            = local.unit_hosts.zookeeper
  name            = "${var.name}-zookeeper"
  datacenter      = var.name
  listen          = local.listen.zookeeper
  data_dir        = local.data_dirs.zookeeper
  allow_data_loss = var.allow_data_loss
}

locals {
  # Who uses these waits until it is there.
  zookeeper         = var.zookeeper == null ? one(headrace_zookeeper.this[*].listen) : var.zookeeper
  bootstrap_servers = [for id in local.bootstrap_ids : headrace_broker.this[id].listen]
  registry_url      = var.registry ? "http://${one(headrace_registry.this[*].listen)}" : null
}

resource "headrace_broker" "this" {
  for_each = local.brokers

  host            = local.broker_hosts[each.key]
  name            = each.value
  datacenter      = var.name
  requires        = var.zookeeper == null && local.broker_hosts[each.key] == local.unit_hosts.zookeeper ? ["${var.name}-zookeeper"] : []
  broker_id       = tonumber(each.key)
  zookeeper       = local.zookeeper
  listen          = local.listen["broker-${each.key}"]
  front_listen    = var.balancer ? local.listen["front-${each.key}"] : null
  front_advertise = var.balancer ? local.listen.balancer : null
  data_dir        = local.data_dirs["broker-${each.key}"]
  settings        = var.broker_settings
  allow_data_loss = var.allow_data_loss
}

resource "headrace_registry" "this" {
  count = var.registry ? 1 : 0

  host       = local.unit_hosts.registry
  name       = "${var.name}-registry"
  datacenter = var.name
  requires   = var.zookeeper == null && local.unit_hosts.registry == local.unit_hosts.zookeeper ? ["${var.name}-zookeeper"] : []
  zookeeper  = local.zookeeper
  listen     = local.listen.registry
}

# It finds the brokers in ZooKeeper as they come and go; that it requires some makes it leave before them.
resource "headrace_balancer" "this" {
  count      = var.balancer ? 1 : 0
  depends_on = [headrace_broker.this]

  host       = local.unit_hosts.balancer
  name       = "${var.name}-balancer"
  datacenter = var.name
  requires   = [for unit, host in local.bootstrap_units : unit if host == local.unit_hosts.balancer]
  zookeeper  = local.zookeeper
  listen     = local.listen.balancer
  status     = local.listen.balancer-status
  statistics = local.listen.balancer-statistics
  data_dir   = local.data_dirs.balancer
}

resource "headrace_auditor" "this" {
  count = var.auditor ? 1 : 0

  host       = local.unit_hosts.auditor
  name       = "${var.name}-auditor"
  datacenter = var.name
  requires = concat(
    [for unit, host in local.bootstrap_units : unit if host == local.unit_hosts.auditor],
    local.unit_hosts.registry == local.unit_hosts.auditor ? ["${var.name}-registry"] : [],
  )
  bootstrap     = local.bootstrap_servers
  registry_urls = [local.registry_url]
  status        = local.listen.auditor

  lifecycle {
    precondition {
      condition     = var.registry
      error_message = "An auditor reads schemas: let the datacenter have its registry, or no auditor."
    }
  }
}

resource "headrace_topic" "this" {
  for_each   = var.topics
  depends_on = [headrace_broker.this]

  bootstrap_servers  = local.bootstrap_servers
  name               = each.key
  partitions         = each.value.partitions
  replication_factor = each.value.replication_factor
  config             = each.value.config
  audit_store        = each.value.audit_store
  allow_data_loss    = each.value.allow_data_loss
}

resource "headrace_schema" "this" {
  for_each = { for topic, said in var.topics : topic => said if said.schema != null }

  registry_url  = local.registry_url
  subject       = "${each.key}-value"
  schema        = each.value.schema
  compatibility = each.value.compatibility

  lifecycle {
    precondition {
      condition     = var.registry
      error_message = "Topic ${each.key} has a schema, and the datacenter has no registry."
    }
  }
}
