# The provider is a mock of its schema: no server is contacted and no unit runs.
mock_provider "headrace" {}

variables {
  hosts       = [{ agent = "local", network = "127.9.0" }]
  audit_store = "sqlite:////var/lib/headrace/audit.db"
  sources = [
    {
      name              = "west"
      bootstrap_servers = ["127.2.0.11:9092"]
      registry_url      = "http://127.2.0.3:8081"
      units             = { "west-broker-1" = "local", "west-broker-2" = "far" }
    },
    { name = "east", bootstrap_servers = ["127.1.0.11:9092"], registry_url = "http://127.1.0.3:8081" },
  ]
}

run "one_host_with_a_network" {
  command = plan

  assert {
    condition = (
      headrace_mirror.this["west"].status == "127.9.0.21:8083" &&
      headrace_mirror.this["east"].status == "127.9.0.22:8083"
    )
    error_message = "Mirrors are numbered in the order of the sources."
  }
  assert {
    condition = (
      headrace_mirror.this["west"].requires == tolist(["west-broker-1", "analysis-broker-1", "analysis-broker-2"])
    )
    error_message = "A mirror requires only units of its own host."
  }
  assert {
    condition = (
      headrace_auditor.this.registry_urls ==
      tolist(["http://127.9.0.3:8081", "http://127.2.0.3:8081", "http://127.1.0.3:8081"])
    )
    error_message = "The auditor reads its own registry first, then the sources'."
  }
  assert {
    condition = (
      headrace_airflow.api_server[0].connections["headrace_default"].extra["registry_url"] ==
      "west=http://127.2.0.3:8081,east=http://127.1.0.3:8081,analysis=http://127.9.0.3:8081"
    )
    error_message = "Loads read the source datacenters' registries first."
  }
  assert {
    condition     = output.webhdfs_url == "http://127.9.0.31:9870" && output.airflow_url == "http://127.9.0.7:8080"
    error_message = "HDFS and Airflow are at their planned addresses."
  }
  assert {
    condition     = keys(headrace_airflow.component) == ["dag-processor", "scheduler", "triggerer"]
    error_message = "Airflow has three components besides the api-server."
  }
  assert {
    condition = (
      headrace_postgresql.this[0].name == "analysis-postgresql" &&
      headrace_airflow.api_server[0].requires == tolist(["analysis-postgresql"]) &&
      headrace_airflow.api_server[0].database_url == null &&
      alltrue([for each in concat(headrace_airflow.api_server, values(headrace_airflow.component)) : each.postgresql == "analysis-postgresql"])
    )
    error_message = "All of Airflow uses the PostgreSQL of its host, which starts first."
  }
}

run "several_hosts" {
  command = plan

  variables {
    hosts = [
      { agent = "host-a", address = "10.9.0.5" },
      { agent = "host-b", address = "10.9.0.6" },
    ]
    placement = { "mirror-east" = "host-b" }
    hdfs      = { hdfs_url = "hdfs://nn:8020", webhdfs_url = "http://nn:9870" }
    airflow   = null
    loads     = { clicks = { owner = "web" } }
  }

  assert {
    condition = (
      headrace_mirror.this["east"].host == "host-b" &&
      headrace_mirror.this["east"].status == "10.9.0.6:8111" &&
      headrace_mirror.this["east"].requires == tolist(["analysis-broker-2"])
    )
    error_message = "A mirror runs where it is placed."
  }
  assert {
    condition = (
      length(headrace_warehouse.this) + length(headrace_airflow.api_server) + length(headrace_airflow.component) + length(headrace_postgresql.this) == 0 &&
      output.hdfs_url == "hdfs://nn:8020" && output.airflow_url == null
    )
    error_message = "Units that are switched off are not created, and a given HDFS is used."
  }

  # Without Airflow there are no loads.
  expect_failures = [headrace_load.this]
}

run "invalid_variables" {
  command = plan

  variables {
    hosts   = [{ agent = "local" }]
    sources = [{ name = "east", bootstrap_servers = [], registry_url = "http://127.1.0.3:8081" }]
    listen  = { "warehouse" = "127.9.0.31:8020" }
  }

  expect_failures = [var.hosts, var.sources, var.listen]
}
