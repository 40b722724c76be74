variable "name" {
  description = "The datacenter's name; its units are called NAME-zookeeper, NAME-broker-1 and so on."
  type        = string
  default     = "analysis"
  nullable    = false

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

variable "sources" {
  description = "The datacenters that are mirrored here, in this order: the `source` output of each."
  type = list(object({
    name              = string
    bootstrap_servers = list(string)
    registry_url      = string
    units             = optional(map(string), {})
  }))
  nullable = false

  validation {
    condition     = length(distinct(var.sources[*].name)) == length(var.sources)
    error_message = "A datacenter is mirrored twice; name each once."
  }
  validation {
    condition     = alltrue([for source in var.sources : length(source.bootstrap_servers) > 0])
    error_message = "Name one broker of each datacenter at least."
  }
  validation {
    condition     = alltrue([for source in var.sources : source.registry_url != null])
    error_message = "The audit reads the schemas of each datacenter: let it have its registry."
  }
}

variable "brokers" {
  description = "How many brokers; they are spread over the hosts in turn, and one more touches no other."
  type        = number
  default     = 2
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

variable "mirror" {
  description = "Patterns of the topics that are mirrored, and of those that are not; left out, all are but Kafka's own."
  type = object({
    topics  = optional(string)
    exclude = optional(string)
  })
  default  = {}
  nullable = false
}

variable "audit_store" {
  description = "Where all that the tiers say is kept, an SQLAlchemy URL, such as sqlite:////var/lib/headrace/audit.db."
  type        = string
  sensitive   = true
  nullable    = false
}

variable "audit_keep_days" {
  description = "How long the store keeps it; left out, for ever."
  type        = number
  default     = null
}

variable "hdfs" {
  description = "An HDFS that is there already; left out, the datacenter gets a NameNode and a DataNode of its own."
  type = object({
    hdfs_url    = string
    webhdfs_url = string
  })
  default = null
}

variable "warehouse_settings" {
  description = "Settings of its own HDFS, by Hadoop's names."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "airflow" {
  description = <<-EOT
    Airflow, which loads and seals; null for none. `python`: the interpreter of Airflow's environment, `job_python`
    that of headrace's own, which runs the loads; `spark_master`, where those run; `database_url`: SQLite when left out.
  EOT
  type = object({
    home         = optional(string)
    dags         = optional(string)
    python       = optional(string)
    job_python   = optional(string)
    database_url = optional(string)
    spark_master = optional(string, "local[2]")
  })
  default = {}
}

variable "loads" {
  description = "Loads into HDFS by topic, beside those that the DAGs have of their own; what is left out is the provider's default."
  type = map(object({
    owner        = string
    schedule     = optional(string)
    output       = optional(string)
    completeness = optional(number)
    grace        = optional(string)
    audit_delay  = optional(string)
    audit_wait   = optional(string)
    retention    = optional(string)
    retries      = optional(number)
    retry_delay  = optional(string)
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
      for unit in keys(var.placement) : can(regex("^(zookeeper|registry|auditor|warehouse|airflow|broker-[1-9][0-9]*|mirror-[a-z][a-z0-9]*)$", unit))
    ])
    error_message = "Units are zookeeper, registry, auditor, warehouse, airflow, broker-N and mirror-SOURCE."
  }
  validation {
    condition     = length(setsubtract(values(var.placement), var.hosts[*].agent)) == 0
    error_message = "A unit is placed on a host that is not one of `hosts`."
  }
}

variable "listen" {
  description = <<-EOT
    Addresses HOST:PORT other than planned, by unit: zookeeper, registry, auditor, airflow, broker-N, mirror-SOURCE (where
    it tells how far it is). The warehouse's is a host alone, without a port.
  EOT
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition = alltrue([
      for unit in keys(var.listen) :
      can(regex("^(zookeeper|registry|auditor|airflow|warehouse|broker-[1-9][0-9]*|mirror-[a-z][a-z0-9]*)$", unit))
    ])
    error_message = "Units are zookeeper, registry, auditor, airflow, warehouse, broker-N and mirror-SOURCE."
  }
  validation {
    condition = alltrue([
      for unit, address in var.listen : can(regex(unit == "warehouse" ? "^[^:/,\\s]+$" : "^[^:/,\\s]+:[0-9]{1,5}$", address))
    ])
    error_message = "An address is HOST:PORT, the warehouse's HOST."
  }
}

variable "allow_data_loss" {
  description = "Whether brokers and a warehouse that hold data, and the ZooKeeper that knows it, may be destroyed or replaced. What was applied last counts."
  type        = bool
  default     = false
  nullable    = false
}
