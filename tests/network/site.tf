# Three datacenters on hosts of their own, each with an agent: fix_network_terraform.py gives the variables.
terraform {
  required_providers {
    headrace = {
      source = "headrace.local/headrace/headrace"
    }
  }
}

variable "agents" {
  type = map(object({ url = string, token_file = string, certificate_file = string }))
}

variable "addresses" {
  description = "Each host's address."
  type        = map(string)
}

variable "audit_store" {
  type = string
}

provider "headrace" {
  agents = var.agents
}

locals {
  hosts           = { for host, address in var.addresses : host => { agent = host, address = address } }
  broker_settings = { "auto.create.topics.enable" = "true" }
  topics          = { page-view = { partitions = 2 }, far = { partitions = 2 } }
}

module "east" {
  source = "../modules/datacenter"

  name            = "east"
  hosts           = [local.hosts.east-1, local.hosts.east-2]
  brokers         = 2
  broker_settings = local.broker_settings
  topics          = local.topics
}

module "west" {
  source = "../modules/datacenter"

  name            = "west"
  hosts           = [local.hosts.west-1]
  brokers         = 1
  broker_settings = local.broker_settings
  topics          = local.topics
}

# Nothing is loaded here: HDFS and Airflow would only wait.
module "analysis" {
  source = "../modules/analysis"

  name            = "analysis"
  hosts           = [local.hosts.analysis-1, local.hosts.analysis-2]
  brokers         = 2
  broker_settings = local.broker_settings
  sources         = [module.east.source, module.west.source]
  placement       = { mirror-west = "analysis-2" }
  audit_store     = var.audit_store
  hdfs            = { hdfs_url = "hdfs://none:8020", webhdfs_url = "http://none:9870" }
  airflow         = null
}

output "east" {
  value = module.east
}

output "west" {
  value = module.west
}

output "analysis" {
  value = module.analysis
}
