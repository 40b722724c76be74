variable "home" {
  description = "The home of this machine's agent, which holds all data. Default: .headrace in the checkout."
  type        = string
  default     = null
}

variable "east" {
  description = "A datacenter where services publish, in a /24 of loopback."
  type = object({
    network         = optional(string, "127.1.0")
    brokers         = optional(number, 3)
    broker_settings = optional(map(string), {})
  })
  default = {}
}

variable "west" {
  description = "The other datacenter where services publish."
  type = object({
    network         = optional(string, "127.2.0")
    brokers         = optional(number, 3)
    broker_settings = optional(map(string), {})
  })
  default = {}
}

variable "analysis" {
  description = "The datacenter that both are mirrored into."
  type = object({
    network         = optional(string, "127.9.0")
    brokers         = optional(number, 2)
    broker_settings = optional(map(string), {})
  })
  default = {}
}

variable "broker_settings" {
  description = "Settings of all brokers. By default events of any age are kept, up to 2 GiB per partition."
  type        = map(string)
  default = {
    "auto.create.topics.enable" = "true"
    "num.partitions"            = "3"
    "log.retention.ms"          = "-1"
    "log.retention.bytes"       = "2147483648"
  }
}

variable "topics" {
  description = "Topics of both east and west, optionally with schemas. Default: none; the demo creates its own."
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
  description = "Airflow's DAG folder, its interpreter, headrace's interpreter for the loads (job_python), and its database. Default: those of the checkout, and PostgreSQL."
  type = object({
    dags         = optional(string)
    python       = optional(string)
    job_python   = optional(string)
    database     = optional(string, "postgresql")
    database_url = optional(string)
  })
  default = {}
}
