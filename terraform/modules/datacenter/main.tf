# The host and the address of each unit. Only brokers depend on the number of brokers, so a further broker, or one
# less, restarts nothing.
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

  # On a host with a network: the last number of the address, and the port. On a host with one address: the port.
  places = {
    zookeeper           = { unit = "zookeeper", number = 2, port = 2181, on_address = 2181 }
    registry            = { unit = "registry", number = 3, port = 8081, on_address = 8081 }
    balancer            = { unit = "balancer", number = 3, port = 9092, on_address = 9090 }
    balancer-status     = { unit = "balancer", number = 3, port = 8084, on_address = 9091 }
    balancer-statistics = { unit = "balancer", number = 3, port = 8404, on_address = 8404 }
    auditor             = { unit = "auditor", number = 4, port = 8082, on_address = 8082 }
  }
  # Broker → the number of brokers with a lower id on its host.
  broker_ranks = {
    for id, host in local.broker_hosts :
    id => length([for other, its in local.broker_hosts : other if its == host && tonumber(other) < tonumber(id)])
  }

  planned = merge(
    {
      for what, place in local.places :
      what => (
        local.hosts[local.unit_hosts[place.unit]].network == null
        ? "${local.hosts[local.unit_hosts[place.unit]].address}:${place.on_address}"
        : "${local.hosts[local.unit_hosts[place.unit]].network}.${place.number}:${place.port}"
      )
    },
    {
      for id, host in local.broker_hosts :
      "broker-status-${id}" => (
        local.hosts[host].network == null
        ? "${local.hosts[host].address}:${8200 + local.broker_ranks[id]}"
        : "${local.hosts[host].network}.${10 + tonumber(id)}:8085"
      )
    },
    # A broker's front, where the balancer connects, is on the port after the broker's own.
    [
      for what, offset in { broker = 0, front = 1 } : {
        for id, host in local.broker_hosts :
        "${what}-${id}" => (
          local.hosts[host].network == null
          ? "${local.hosts[host].address}:${9092 + offset + 2 * local.broker_ranks[id]}"
          : "${local.hosts[host].network}.${10 + tonumber(id)}:${9092 + offset}"
        )
      }
    ]...
  )
  listen = merge(local.planned, var.listen)

  data_dirs = {
    for unit in concat(["zookeeper", "balancer"], [for id in keys(local.brokers) : "broker-${id}"]) :
    unit => var.data_dir == null ? null : "${var.data_dir}/${unit}"
  }

  bootstrap_ids = [for number in range(1, min(var.brokers, var.bootstrap_brokers) + 1) : tostring(number)]
  # A unit may require only units of its own host.
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
  # Attributes rather than planned addresses: units that use them wait for these units.
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
  status          = local.listen["broker-status-${each.key}"]
  front_listen    = var.balancer ? local.listen["front-${each.key}"] : null
  front_advertise = var.balancer ? local.listen.balancer : null
  data_dir        = local.data_dirs["broker-${each.key}"]
  rack            = lookup(var.racks, local.broker_hosts[each.key], null)
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
  sources    = var.registry_sources
}

# The balancer finds all brokers in ZooKeeper. It requires some so that it stops before they do.
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
      error_message = "The auditor requires the registry: set registry = true, or auditor = false."
    }
  }
}

resource "headrace_topic" "this" {
  for_each   = var.topics
  depends_on = [headrace_broker.this]

  bootstrap_servers   = local.bootstrap_servers
  name                = each.key
  partitions          = each.value.partitions
  replication_factor  = each.value.replication_factor
  min_insync_replicas = each.value.min_insync_replicas
  config              = each.value.config
  producers           = each.value.producers
  audit_store         = each.value.audit_store
  allow_data_loss     = each.value.allow_data_loss
}

resource "headrace_schema" "this" {
  for_each = { for name, topic in var.topics : name => topic if topic.schema != null }

  registry_url  = local.registry_url
  subject       = "${each.key}-value"
  schema        = each.value.schema
  compatibility = each.value.compatibility

  lifecycle {
    precondition {
      condition     = var.registry
      error_message = "Topic ${each.key} has a schema, but the datacenter has no registry."
    }
  }
}
