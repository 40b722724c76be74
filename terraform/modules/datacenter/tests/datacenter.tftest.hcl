# The provider is a mock of its schema: no server is contacted and no unit runs.
mock_provider "headrace" {}

variables {
  name  = "east"
  hosts = [{ agent = "local", network = "127.1.0" }]
}

run "one_host_with_a_network" {
  command = plan

  assert {
    condition = (
      headrace_zookeeper.this[0].listen == "127.1.0.2:2181" &&
      headrace_registry.this[0].listen == "127.1.0.3:8081" &&
      headrace_balancer.this[0].listen == "127.1.0.3:9092" &&
      headrace_balancer.this[0].status == "127.1.0.3:8084" &&
      headrace_auditor.this[0].status == "127.1.0.4:8082"
    )
    error_message = "The addresses in a network are not as planned."
  }
  assert {
    condition = (
      [for id in ["1", "2", "3"] : headrace_broker.this[id].listen] ==
      ["127.1.0.11:9092", "127.1.0.12:9092", "127.1.0.13:9092"]
    )
    error_message = "Each broker has an address of its own."
  }
  assert {
    condition = (
      headrace_broker.this["2"].front_listen == "127.1.0.12:9093" &&
      headrace_broker.this["2"].front_advertise == "127.1.0.3:9092"
    )
    error_message = "The balancer connects to a broker's front, which advertises the balancer to clients."
  }
}

run "a_further_broker_changes_no_other_unit" {
  command = plan

  variables {
    brokers = 4
  }

  assert {
    condition = (
      output.source == run.one_host_with_a_network.source &&
      output.bootstrap_servers == run.one_host_with_a_network.bootstrap_servers
    )
    error_message = "The bootstrap brokers must not change with the number of brokers."
  }
  assert {
    condition     = { for id, broker in output.brokers : id => broker if id != "4" } == run.one_host_with_a_network.brokers
    error_message = "Existing brokers must not change."
  }
  assert {
    condition     = headrace_balancer.this[0].requires == tolist(["east-broker-1", "east-broker-2", "east-broker-3"])
    error_message = "The balancer must not change with the number of brokers."
  }
}

run "several_hosts" {
  command = plan

  variables {
    brokers = 6
    hosts = [
      { agent = "host-a", address = "10.0.0.5" },
      { agent = "host-b", address = "10.0.0.6" },
      { agent = "host-c", network = "127.4.0" },
    ]
    placement = { "broker-3" = "host-a", "balancer" = "host-c" }
    listen    = { "registry" = "10.0.0.5:18081", "front-1" = "10.0.0.5:19093" }
    data_dir  = "/var/lib/headrace/data"
  }

  assert {
    condition = (
      [for id in ["1", "2", "3", "4", "5", "6"] : headrace_broker.this[id].host] ==
      ["host-a", "host-b", "host-a", "host-a", "host-b", "host-c"]
    )
    error_message = "Brokers are spread over the hosts round-robin, except a pinned one."
  }
  assert {
    condition = (
      [for id in ["1", "2", "3", "4", "5", "6"] : headrace_broker.this[id].listen] ==
      ["10.0.0.5:9092", "10.0.0.6:9092", "10.0.0.5:9094", "10.0.0.5:9096", "10.0.0.6:9094", "127.4.0.16:9092"]
    )
    error_message = "Brokers of one address take different ports."
  }
  assert {
    condition = (
      headrace_broker.this["1"].requires == tolist(["east-zookeeper"]) &&
      length(headrace_broker.this["2"].requires) == 0 &&
      length(headrace_balancer.this[0].requires) == 0 &&
      headrace_auditor.this[0].requires == tolist(["east-broker-1", "east-broker-3", "east-registry"])
    )
    error_message = "A unit requires only units of its own host."
  }
  assert {
    condition = (
      headrace_balancer.this[0].listen == "127.4.0.3:9092" &&
      headrace_registry.this[0].listen == "10.0.0.5:18081" &&
      headrace_broker.this["1"].front_listen == "10.0.0.5:19093" &&
      headrace_broker.this["4"].front_listen == "10.0.0.5:9097"
    )
    error_message = "A given address replaces the planned one."
  }
  assert {
    condition     = headrace_broker.this["2"].data_dir == "/var/lib/headrace/data/broker-2"
    error_message = "Each unit has its own folder."
  }
}

run "units_switched_off" {
  command = plan

  variables {
    brokers   = 1
    zookeeper = "10.0.0.9:2181,10.0.0.10:2181/east"
    balancer  = false
    registry  = false
    auditor   = false
    topics    = { clicks = { partitions = 2, schema = "\"string\"" } }
  }

  assert {
    condition = (
      length(headrace_zookeeper.this) + length(headrace_balancer.this) +
      length(headrace_registry.this) + length(headrace_auditor.this) == 0
    )
    error_message = "Units that are switched off are not created."
  }
  assert {
    condition = (
      headrace_broker.this["1"].zookeeper == "10.0.0.9:2181,10.0.0.10:2181/east" &&
      headrace_broker.this["1"].front_listen == null
    )
    error_message = "Brokers use the given ensemble, and have no front without a balancer."
  }
  assert {
    condition     = headrace_topic.this["clicks"].bootstrap_servers == tolist(["127.1.0.11:9092"])
    error_message = "A topic is created by the datacenter's own brokers."
  }

  # The topic has a schema, but there is no registry.
  expect_failures = [headrace_schema.this]
}

run "invalid_variables" {
  command = plan

  variables {
    name      = "East"
    brokers   = 0
    data_dir  = "data"
    placement = { "broker-1" = "nowhere" }
    listen    = { "door" = "10.0.0.5:1" }
  }

  expect_failures = [var.name, var.brokers, var.data_dir, var.placement, var.listen]
}
