variable "name" {
  description = "The datacenter's name, which prefixes the names of its units: NAME-zookeeper, NAME-broker-1, …"
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9]{0,30}$", var.name))
    error_message = "A datacenter's name has at most 31 lowercase letters and digits, beginning with a letter."
  }
}

variable "hosts" {
  description = <<-EOT
    The hosts, in the order in which brokers are placed on them. `agent` is a key of the provider's `agents`. Each host
    has either one `address`, where its units listen on different ports, or a /24 `network` of its own, such as
    127.1.0, where its units listen on different addresses.
  EOT
  type = list(object({
    agent   = string
    address = optional(string)
    network = optional(string)
  }))
  nullable = false

  validation {
    condition     = length(var.hosts) > 0
    error_message = "Name at least one host."
  }
  validation {
    condition     = length(distinct(var.hosts[*].agent)) == length(var.hosts)
    error_message = "A host is named twice. Name each host once."
  }
  validation {
    condition     = alltrue([for host in var.hosts : (host.address == null) != (host.network == null)])
    error_message = "Each host must have either an address or a network."
  }
  validation {
    condition = alltrue([
      for host in var.hosts : can(regex("^[0-9]{1,3}(\\.[0-9]{1,3}){2}$", host.network)) if host.network != null
    ])
    error_message = "A network consists of the first three numbers of its addresses, such as 127.1.0."
  }
}

variable "brokers" {
  description = "The number of brokers. They are spread over the hosts round-robin; a further broker changes no other unit."
  type        = number
  default     = 3
  nullable    = false

  validation {
    condition     = var.brokers >= 1 && var.brokers <= 200 && floor(var.brokers) == var.brokers
    error_message = "The number of brokers is a whole number from 1 to 200."
  }
}

variable "broker_settings" {
  description = "Settings of all brokers by Kafka's names."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "racks" {
  description = <<-EOT
    The racks of hosts, by a key of the provider's `agents`: {"host-a" = "rack-1"}. Replicas are spread over racks. A host
    that is not named is a rack of its own.
  EOT
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "bootstrap_brokers" {
  description = "The number of brokers that clients get as bootstrap servers; they find the others through these."
  type        = number
  default     = 3
  nullable    = false

  validation {
    condition     = var.bootstrap_brokers >= 1 && floor(var.bootstrap_brokers) == var.bootstrap_brokers
    error_message = "The number of bootstrap brokers is a whole number, 1 or more."
  }
}

variable "zookeeper" {
  description = "An existing ensemble, HOST:PORT,…[/PATH]. Default: the module creates one server."
  type        = string
  default     = null
}

variable "balancer" {
  description = "Whether there is a balancer: one address that services publish to."
  type        = bool
  default     = true
  nullable    = false
}

variable "registry" {
  description = "Whether there is a schema registry."
  type        = bool
  default     = true
  nullable    = false
}

variable "registry_sources" {
  description = "Where topics are mirrored into: the source datacenters' registries, [\"east=http://…\"]. Their subjects are copied."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "auditor" {
  description = "Whether there is an auditor, which counts the brokers' logs. It requires the registry."
  type        = bool
  default     = true
  nullable    = false
}

variable "topics" {
  description = <<-EOT
    Topics by name. `schema` is the Avro schema of the values (JSON), for the subject NAME-value. `producers` is "any"
    for a topic whose producers need not report: the audit then counts from the log on. A topic with data is
    deleted only if `allow_data_loss = true` was applied before; with `audit_store` the refusal also reports how many
    events are not in HDFS yet.
  EOT
  type = map(object({
    partitions          = number
    replication_factor  = optional(number)
    min_insync_replicas = optional(number)
    config              = optional(map(string), {})
    producers           = optional(string, "reporting")
    schema              = optional(string)
    compatibility       = optional(string)
    audit_store         = optional(string)
    allow_data_loss     = optional(bool, false)
  }))
  default  = {}
  nullable = false
}

variable "data_dir" {
  description = "The folder of all units' data on each host. Default: each agent's own folder."
  type        = string
  default     = null

  validation {
    condition     = var.data_dir == null || can(regex("^/.", var.data_dir))
    error_message = "The folder must be an absolute path."
  }
}

variable "placement" {
  description = <<-EOT
    Units that must run on a certain host, by name without the datacenter: {"broker-3" = "host-b"}. Before you add a
    host, pin the existing brokers: a broker with data cannot move.
  EOT
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition = alltrue([
      for unit in keys(var.placement) : can(regex("^(zookeeper|registry|balancer|auditor|broker-[1-9][0-9]*)$", unit))
    ])
    error_message = "The units are zookeeper, registry, balancer, auditor and broker-N."
  }
  validation {
    condition     = length(setsubtract(values(var.placement), var.hosts[*].agent)) == 0
    error_message = "A unit is placed on a host that is not in `hosts`."
  }
}

variable "listen" {
  description = <<-EOT
    Addresses HOST:PORT that replace the module's own, by unit: zookeeper, registry, balancer, balancer-status,
    balancer-statistics, auditor, broker-N, broker-status-N, and front-N, where the balancer connects to broker N.
  EOT
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition = alltrue([
      for unit in keys(var.listen) :
      can(regex("^(zookeeper|registry|balancer(-status|-statistics)?|auditor|(broker|broker-status|front)-[1-9][0-9]*)$", unit))
    ])
    error_message = "The units are zookeeper, registry, balancer, balancer-status, balancer-statistics, auditor, broker-N, broker-status-N, front-N."
  }
  validation {
    condition     = alltrue([for address in values(var.listen) : can(regex("^[^:/,\\s]+:[0-9]{1,5}$", address))])
    error_message = "An address must be HOST:PORT."
  }
}

variable "allow_data_loss" {
  description = "Whether brokers that hold data, and the ZooKeeper with their topics, may be deleted or replaced. The last applied value counts."
  type        = bool
  default     = false
  nullable    = false
}
