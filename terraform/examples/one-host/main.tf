# The smallest: one datacenter of one broker on this machine, and one topic in it.
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
  description = "The home of this machine's agent; left out, $HEADRACE_HOME, else .headrace here."
  type        = string
  default     = null
}

variable "address" {
  description = "The host's address."
  type        = string
  default     = "127.0.0.1"
}

variable "brokers" {
  description = "How many brokers."
  type        = number
  default     = 1
}

module "here" {
  source = "../../modules/datacenter"

  name    = "here"
  hosts   = [{ agent = "local", address = var.address }]
  brokers = var.brokers
  topics  = { page-view = { partitions = 3 } }
}

output "publish_to" {
  description = "Services' address."
  value       = module.here.balancer
}

output "read_from" {
  description = "Consumers' addresses."
  value       = module.here.bootstrap_servers
}
