# Nothing is asked and nothing runs: the provider is a mock of its schema.
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

run "a_network_of_its_own" {
  command = plan

  assert {
    condition = (
      headrace_mirror.this["west"].status == "127.9.0.21:8083" &&
      headrace_mirror.this["east"].status == "127.9.0.22:8083"
    )
    error_message = "Mirrors come in the order of the sources."
  }
  assert {
    condition = (
      headrace_mirror.this["west"].requires == tolist(["west-broker-1", "analysis-broker-1", "analysis-broker-2"])
    )
    error_message = "A mirror requires what its own host has."
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
      "http://127.2.0.3:8081,http://127.1.0.3:8081,http://127.9.0.3:8081"
    )
    error_message = "Loads read the registries of those who publish first."
  }
  assert {
    condition     = output.webhdfs_url == "http://127.9.0.31:9870" && output.airflow_url == "http://127.9.0.7:8080"
    error_message = "HDFS or Airflow is not where it is planned."
  }
  assert {
    condition     = keys(headrace_airflow.component) == ["dag-processor", "scheduler", "triggerer"]
    error_message = "Airflow has four components."
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
    error_message = "A mirror is where it is placed."
  }
  assert {
    condition = (
      length(headrace_warehouse.this) + length(headrace_airflow.api_server) + length(headrace_airflow.component) == 0 &&
      output.hdfs_url == "hdfs://nn:8020" && output.airflow_url == null
    )
    error_message = "What is left out is not made, and an HDFS that is given is used."
  }

  # Nobody is there to load.
  expect_failures = [headrace_load.this]
}

run "what_cannot_be" {
  command = plan

  variables {
    hosts   = [{ agent = "local" }]
    sources = [{ name = "east", bootstrap_servers = [], registry_url = "http://127.1.0.3:8081" }]
    listen  = { "warehouse" = "127.9.0.31:8020" }
  }

  expect_failures = [var.hosts, var.sources, var.listen]
}
