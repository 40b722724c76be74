# The smallest example: one datacenter with one broker and one topic, on this machine.
terraform {
  required_version = ">= 1.9"

  required_providers {
    headrace = {
      source = "headrace.local/headrace/headrace"
    }
  }
}

provider "headrace" {
  home = var.home
}

variable "home" {
  description = "The home of this machine's agent. Default: $HEADRACE_HOME, else .headrace in this folder."
  type        = string
  default     = null
}

variable "address" {
  description = "The address of this host."
  type        = string
  default     = "127.0.0.1"
}

variable "brokers" {
  description = "The number of brokers."
  type        = number
  default     = 1
}

variable "allow_data_loss" {
  description = "Whether `terraform destroy` may delete records. Apply it first: the last applied value counts."
  type        = bool
  default     = false
}

module "here" {
  source = "../../modules/datacenter"

  name    = "here"
  hosts   = [{ agent = "local", address = var.address }]
  brokers = var.brokers
  topics  = { page-view = { partitions = 3, allow_data_loss = var.allow_data_loss } }

  allow_data_loss = var.allow_data_loss
}

output "publish_to" {
  description = "The address that services publish to."
  value       = module.here.balancer
}

output "read_from" {
  description = "The addresses that consumers read from."
  value       = module.here.bootstrap_servers
}

output "datacenters" {
  description = "What `terraform output -json | headrace context import NAME` reads."
  value = {
    here = {
      bootstrap_servers = module.here.bootstrap_servers
      balancer          = module.here.balancer
      registry_url      = module.here.registry_url
      zookeeper         = module.here.zookeeper
    }
  }
}
