variable "name" {
  description = "The datacenter's name; its units are called NAME-zookeeper, NAME-broker-1 and so on."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9]{0,30}$", var.name))
    error_message = "A datacenter's name has at most 31 small letters and digits, a letter first."
  }
}

variable "hosts" {
  description = <<-EOT
    The hosts, in the order in which they are filled: each a key of the provider's `agents`, and either the one
    `address` that the host has (its units take different ports), or its `network`, the first three numbers of a
    /24 that is the host's own, such as 127.1.0 (its units take different addresses).
  EOT
  type = list(object({
    agent   = string
    address = optional(string)
    network = optional(string)
  }))
  nullable = false

  validation {
    condition     = length(var.hosts) > 0
    error_message = "Name one host at least."
  }
  validation {
    condition     = length(distinct(var.hosts[*].agent)) == length(var.hosts)
    error_message = "A host is named twice; name each once."
  }
  validation {
    condition     = alltrue([for host in var.hosts : (host.address == null) != (host.network == null)])
    error_message = "Each host has either an address or a network."
  }
  validation {
    condition = alltrue([
      for host in var.hosts : can(regex("^[0-9]{1,3}(\\.[0-9]{1,3}){2}$", host.network)) if host.network != null
    ])
    error_message = "A network is the first three numbers of its addresses, such as 127.1.0."
  }
}

variable "brokers" {
  description = "How many brokers; they are spread over the hosts in turn, and one more touches no other."
  type        = number
  default     = 3
  nullable    = false

  validation {
    condition     = var.brokers >= 1 && var.brokers <= 200 && floor(var.brokers) == var.brokers
    error_message = "Have 1 to 200 brokers, a whole number."
  }
}

variable "broker_settings" {
  description = "Settings of all brokers, by Kafka's names."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "bootstrap_brokers" {
  description = "How many brokers are named to who asks first: the others are found through them."
  type        = number
  default     = 3
  nullable    = false

  validation {
    condition     = var.bootstrap_brokers >= 1 && floor(var.bootstrap_brokers) == var.bootstrap_brokers
    error_message = "Name one broker at least, a whole number."
  }
}

variable "zookeeper" {
  description = "An ensemble that is there already, HOST:PORT,…[/PATH]; left out, the datacenter gets a server of its own."
  type        = string
  default     = null
}

variable "balancer" {
  description = "Whether services publish here, through one address."
  type        = bool
  default     = true
  nullable    = false
}

variable "registry" {
  description = "Whether it has a schema registry."
  type        = bool
  default     = true
  nullable    = false
}

variable "auditor" {
  description = "Whether its logs are counted for the audit; that needs the registry."
  type        = bool
  default     = true
  nullable    = false
}

variable "topics" {
  description = <<-EOT
    Topics by name. `schema` (Avro, JSON) is that of the values, subject NAME-value. Such with data are not destroyed
    unless allow_data_loss was applied before; `audit_store` lets a refusal tell how many events are not in HDFS yet.
  EOT
  type = map(object({
    partitions         = number
    replication_factor = optional(number, 1)
    config             = optional(map(string), {})
    schema             = optional(string)
    compatibility      = optional(string)
    audit_store        = optional(string)
    allow_data_loss    = optional(bool, false)
  }))
  default  = {}
  nullable = false
}

variable "data_dir" {
  description = "The folder of all units' data, on each host; left out, each agent's own."
  type        = string
  default     = null

  validation {
    condition     = var.data_dir == null || can(regex("^/.", var.data_dir))
    error_message = "Name an absolute folder."
  }
}

variable "placement" {
  description = <<-EOT
    Units that belong on a certain host, by their name without the datacenter's: {"broker-3" = "host-b"}. Who adds
    hosts pins the brokers that were there: a broker with data is not moved.
  EOT
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition = alltrue([
      for unit in keys(var.placement) : can(regex("^(zookeeper|registry|balancer|auditor|broker-[1-9][0-9]*)$", unit))
    ])
    error_message = "Units are zookeeper, registry, balancer, auditor and broker-N."
  }
  validation {
    condition     = length(setsubtract(values(var.placement), var.hosts[*].agent)) == 0
    error_message = "A unit is placed on a host that is not one of `hosts`."
  }
}

variable "listen" {
  description = <<-EOT
    Addresses HOST:PORT other than planned, by unit: zookeeper, registry, balancer, balancer-status,
    balancer-statistics, auditor, broker-N, and front-N, where the balancer reaches broker N.
  EOT
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition = alltrue([
      for unit in keys(var.listen) :
      can(regex("^(zookeeper|registry|balancer(-status|-statistics)?|auditor|(broker|front)-[1-9][0-9]*)$", unit))
    ])
    error_message = "Units are zookeeper, registry, balancer, balancer-status, balancer-statistics, auditor, broker-N, front-N."
  }
  validation {
    condition     = alltrue([for address in values(var.listen) : can(regex("^[^:/,\\s]+:[0-9]{1,5}$", address))])
    error_message = "An address is HOST:PORT."
  }
}

variable "allow_data_loss" {
  description = "Whether brokers that hold data, and the ZooKeeper that knows it, may be destroyed or replaced. What was applied last counts."
  type        = bool
  default     = false
  nullable    = false
}
