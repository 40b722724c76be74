variable "name" {
  description = "The datacenter's name, which prefixes the names of its units: NAME-zookeeper, NAME-broker-1, …"
  type        = string
  default     = "analysis"
  nullable    = false

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

variable "sources" {
  description = "The datacenters to mirror, in this order: the `source` output of each."
  type = list(object({
    name              = string
    bootstrap_servers = list(string)
    registry_url      = string
    units             = optional(map(string), {})
  }))
  nullable = false

  validation {
    condition     = length(distinct(var.sources[*].name)) == length(var.sources)
    error_message = "A datacenter is named twice. Name each datacenter once."
  }
  validation {
    condition     = alltrue([for source in var.sources : length(source.bootstrap_servers) > 0])
    error_message = "Name at least one broker of each datacenter."
  }
  validation {
    condition     = alltrue([for source in var.sources : source.registry_url != null])
    error_message = "Each datacenter needs a registry, because the audit reads its schemas."
  }
}

variable "brokers" {
  description = "The number of brokers. They are spread over the hosts round-robin; a further broker changes no other unit."
  type        = number
  default     = 2
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

variable "mirror" {
  description = "Regular expressions of the topics to mirror and to exclude. Default: all but Kafka's internal topics."
  type = object({
    topics  = optional(string)
    exclude = optional(string)
  })
  default  = {}
  nullable = false
}

variable "audit_store" {
  description = "The audit store, which keeps the reports of all tiers: an SQLAlchemy URL such as sqlite:////var/lib/headrace/audit.db."
  type        = string
  sensitive   = true
  nullable    = false
}

variable "audit_keep_days" {
  description = "How many days the audit store keeps an hour. Default: 30."
  type        = number
  default     = null
}

variable "hdfs" {
  description = "An existing HDFS. Default: the module creates a NameNode and a DataNode."
  type = object({
    hdfs_url    = string
    webhdfs_url = string
  })
  default = null
}

variable "warehouse_settings" {
  description = "Settings of the module's own HDFS by Hadoop's names."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "airflow" {
  description = <<-EOT
    Airflow, which loads and seals; null for none. `python` is the interpreter of Airflow's environment, `job_python`
    that of headrace's main environment, which runs the loads on `spark_master`. `database`: postgresql, a unit on
    Airflow's host, or sqlite, a file that several slots of a backfill may lock; `database_url` replaces both.
  EOT
  type = object({
    home         = optional(string)
    dags         = optional(string)
    python       = optional(string)
    job_python   = optional(string)
    database     = optional(string, "postgresql")
    database_url = optional(string)
    spark_master = optional(string, "local[2]")
  })
  default = {}

  validation {
    condition     = var.airflow == null || contains(["postgresql", "sqlite"], try(var.airflow.database, "sqlite"))
    error_message = "Airflow's database is postgresql or sqlite; an existing one is given by database_url."
  }
}

variable "loads" {
  description = "Loads into HDFS by topic, in addition to those in dags/topics.yaml. Fields that are left out have the provider's defaults."
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
      for unit in keys(var.placement) : can(regex("^(zookeeper|registry|auditor|warehouse|airflow|broker-[1-9][0-9]*|mirror-[a-z][a-z0-9]*)$", unit))
    ])
    error_message = "The units are zookeeper, registry, auditor, warehouse, airflow, broker-N and mirror-SOURCE."
  }
  validation {
    condition     = length(setsubtract(values(var.placement), var.hosts[*].agent)) == 0
    error_message = "A unit is placed on a host that is not in `hosts`."
  }
}

variable "listen" {
  description = <<-EOT
    Addresses HOST:PORT that replace the module's own, by unit: zookeeper, registry, auditor, airflow, broker-N, and
    mirror-SOURCE (its status page). The address of the warehouse is a host without a port.
  EOT
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition = alltrue([
      for unit in keys(var.listen) :
      can(regex("^(zookeeper|registry|auditor|airflow|warehouse|broker-[1-9][0-9]*|mirror-[a-z][a-z0-9]*)$", unit))
    ])
    error_message = "The units are zookeeper, registry, auditor, airflow, warehouse, broker-N and mirror-SOURCE."
  }
  validation {
    condition = alltrue([
      for unit, address in var.listen : can(regex(unit == "warehouse" ? "^[^:/,\\s]+$" : "^[^:/,\\s]+:[0-9]{1,5}$", address))
    ])
    error_message = "An address must be HOST:PORT, that of the warehouse HOST."
  }
}

variable "allow_data_loss" {
  description = "Whether brokers and a warehouse that hold data, and the ZooKeeper with their topics, may be deleted or replaced. The last applied value counts."
  type        = bool
  default     = false
  nullable    = false
}
