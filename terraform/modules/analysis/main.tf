# ZooKeeper, brokers and registry. Services do not publish here, so there is no balancer.
module "datacenter" {
  source = "../datacenter"

  name              = var.name
  hosts             = var.hosts
  brokers           = var.brokers
  broker_settings   = var.broker_settings
  bootstrap_brokers = var.bootstrap_brokers
  zookeeper         = var.zookeeper
  balancer          = false
  auditor           = false
  registry_sources  = [for source in var.sources : "${source.name}=${source.registry_url}"]
  data_dir          = var.data_dir
  placement = {
    for unit, host in var.placement : unit => host if can(regex("^(zookeeper|registry|broker-)", unit))
  }
  listen = {
    for unit, address in var.listen : unit => address if can(regex("^(zookeeper|registry|broker-)", unit))
  }
  allow_data_loss = var.allow_data_loss
}

locals {
  hosts   = { for host in var.hosts : host.agent => host }
  mirrors = { for number, source in var.sources : source.name => merge(source, { number = number }) }

  units = concat(["auditor", "warehouse", "airflow"], [for name in keys(local.mirrors) : "mirror-${name}"])
  unit_hosts = {
    for unit in local.units : unit => lookup(var.placement, unit, var.hosts[0].agent)
  }

  # On a host with a network: the last number of the address, and the port. On a host with one address: the port.
  places = merge(
    {
      auditor = { number = 4, port = 8082, on_address = 8082 }
      airflow = { number = 7, port = 8080, on_address = 8080 }
    },
    {
      for name, mirror in local.mirrors :
      "mirror-${name}" => { number = 21 + mirror.number, port = 8083, on_address = 8110 + mirror.number }
    },
  )
  planned = merge(
    {
      for unit, place in local.places :
      unit => (
        local.hosts[local.unit_hosts[unit]].network == null
        ? "${local.hosts[local.unit_hosts[unit]].address}:${place.on_address}"
        : "${local.hosts[local.unit_hosts[unit]].network}.${place.number}:${place.port}"
      )
    },
    {
      warehouse = (
        local.hosts[local.unit_hosts.warehouse].network == null
        ? local.hosts[local.unit_hosts.warehouse].address
        : "${local.hosts[local.unit_hosts.warehouse].network}.31"
      )
    },
  )
  listen = merge(local.planned, var.listen)

  hdfs_url      = var.hdfs == null ? "hdfs://${local.listen.warehouse}:8020" : var.hdfs.hdfs_url
  webhdfs_url   = var.hdfs == null ? "http://${local.listen.warehouse}:9870" : var.hdfs.webhdfs_url
  registry_urls = var.sources[*].registry_url

  units_here = module.datacenter.source.units

  # Airflow's own PostgreSQL, by its unit's name; null if it has another database.
  postgresql = (
    try(var.airflow.database_url, null) == null && try(var.airflow.database, "sqlite") == "postgresql"
    ? "${var.name}-postgresql"
    : null
  )
}

resource "headrace_mirror" "this" {
  for_each = local.mirrors

  host       = local.unit_hosts["mirror-${each.key}"]
  name       = "${var.name}-mirror-${each.key}"
  datacenter = var.name
  # A unit may require only units of its own host.
  requires = concat([
    for units in [each.value.units, local.units_here] :
    [for unit, host in units : unit if host == local.unit_hosts["mirror-${each.key}"]]
  ]...)
  source           = each.key
  source_bootstrap = each.value.bootstrap_servers
  target_bootstrap = module.datacenter.bootstrap_servers
  target_zookeeper = module.datacenter.zookeeper
  registry_url     = module.datacenter.registry_url
  status           = local.listen["mirror-${each.key}"]
  topics           = var.mirror.topics
  exclude          = var.mirror.exclude
}

resource "headrace_auditor" "this" {
  host       = local.unit_hosts.auditor
  name       = "${var.name}-auditor"
  datacenter = var.name
  requires = concat(
    [for unit, host in local.units_here : unit if host == local.unit_hosts.auditor],
    module.datacenter.registry_host == local.unit_hosts.auditor ? ["${var.name}-registry"] : [],
  )
  bootstrap = module.datacenter.bootstrap_servers
  # Mirrored records refer to schemas of the source datacenter's registry.
  registry_urls     = concat([module.datacenter.registry_url], local.registry_urls)
  status            = local.listen.auditor
  mirrors_zookeeper = module.datacenter.zookeeper
  store             = var.audit_store
  keep_days         = var.audit_keep_days
}

resource "headrace_warehouse" "this" {
  count = var.hdfs == null ? 1 : 0

  host            = local.unit_hosts.warehouse
  name            = "${var.name}-hdfs"
  datacenter      = var.name
  listen_host     = local.listen.warehouse
  data_dir        = var.data_dir == null ? null : "${var.data_dir}/hdfs"
  settings        = var.warehouse_settings
  allow_data_loss = var.allow_data_loss
}

# Its data stays on the host when it is destroyed.
resource "headrace_postgresql" "this" {
  count = local.postgresql == null ? 0 : 1

  host       = local.unit_hosts.airflow
  name       = local.postgresql
  datacenter = var.name
  data_dir   = var.data_dir == null ? null : "${var.data_dir}/postgresql"
  python     = var.airflow.python
}

# The api-server creates the tables, the user and the connections, so the other components wait for it.
resource "headrace_airflow" "api_server" {
  count      = var.airflow == null ? 0 : 1
  depends_on = [headrace_postgresql.this]

  host         = local.unit_hosts.airflow
  name         = "${var.name}-airflow-api-server"
  datacenter   = var.name
  requires     = local.postgresql == null ? [] : [local.postgresql]
  component    = "api-server"
  listen       = local.listen.airflow
  home         = var.airflow.home
  dags         = var.airflow.dags
  python       = var.airflow.python
  database_url = var.airflow.database_url
  postgresql   = local.postgresql
  connections = {
    headrace_default = {
      conn_type = "headrace"
      extra = merge(
        {
          bootstrap = join(",", module.datacenter.source.bootstrap_servers)
          # The datacenters' names and ZooKeeper tell a load which registry knows a partition's schemas.
          registry_url = join(",", concat(
            [for source in var.sources : "${source.name}=${source.registry_url}"],
            ["${var.name}=${module.datacenter.source.registry_url}"],
          ))
          zookeeper   = module.datacenter.zookeeper
          hdfs_url    = local.hdfs_url
          webhdfs_url = local.webhdfs_url
          audit_store = var.audit_store
        },
        var.airflow.job_python == null ? {} : { python = var.airflow.job_python },
      )
    }
    spark_default = {
      conn_type = "spark"
      host      = var.airflow.spark_master
      extra     = { deploy-mode = "client" }
    }
  }
}

resource "headrace_airflow" "component" {
  for_each   = var.airflow == null ? toset([]) : toset(["scheduler", "dag-processor", "triggerer"])
  depends_on = [headrace_airflow.api_server]

  host         = local.unit_hosts.airflow
  name         = "${var.name}-airflow-${each.key}"
  datacenter   = var.name
  requires     = ["${var.name}-airflow-api-server"]
  component    = each.key
  listen       = local.listen.airflow
  home         = var.airflow.home
  dags         = var.airflow.dags
  python       = var.airflow.python
  database_url = var.airflow.database_url
  postgresql   = local.postgresql
}

resource "headrace_load" "this" {
  for_each = var.loads

  host         = local.unit_hosts.airflow
  topic        = each.key
  owner        = each.value.owner
  schedule     = each.value.schedule
  output       = each.value.output
  completeness = each.value.completeness
  grace        = each.value.grace
  audit_delay  = each.value.audit_delay
  audit_wait   = each.value.audit_wait
  retention    = each.value.retention
  retries      = each.value.retries
  retry_delay  = each.value.retry_delay

  lifecycle {
    precondition {
      condition     = var.airflow != null
      error_message = "Loads require Airflow: set airflow, or remove the loads."
    }
  }
}
