variable "home" {
  description = "The folder of this machine's agent and of all data; left out, .headrace of the checkout."
  type        = string
  default     = null
}

variable "east" {
  description = "A datacenter where services publish: a /24 of loopback."
  type = object({
    network         = optional(string, "127.1.0")
    brokers         = optional(number, 3)
    broker_settings = optional(map(string), {})
  })
  default = {}
}

variable "west" {
  description = "The other one."
  type = object({
    network         = optional(string, "127.2.0")
    brokers         = optional(number, 3)
    broker_settings = optional(map(string), {})
  })
  default = {}
}

variable "analysis" {
  description = "Where both are mirrored to."
  type = object({
    network         = optional(string, "127.9.0")
    brokers         = optional(number, 2)
    broker_settings = optional(map(string), {})
  })
  default = {}
}

variable "broker_settings" {
  description = "Settings of every broker. Events of any age are kept, within 2 GiB a partition."
  type        = map(string)
  default = {
    "auto.create.topics.enable" = "true"
    "num.partitions"            = "3"
    "log.retention.ms"          = "-1"
    "log.retention.bytes"       = "2147483648"
  }
}

variable "topics" {
  description = "Topics of east and of west, with schemas where they have one; the demo makes its own."
  type = map(object({
    partitions      = number
    config          = optional(map(string), {})
    schema          = optional(string)
    audit_store     = optional(string)
    allow_data_loss = optional(bool, false)
  }))
  default = {}
}

variable "airflow" {
  description = "Airflow's DAGs, its interpreter, headrace's own (for the loads), and its database; left out, the checkout's."
  type = object({
    dags         = optional(string)
    python       = optional(string)
    job_python   = optional(string)
    database_url = optional(string)
  })
  default = {}
}
