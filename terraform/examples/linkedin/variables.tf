variable "home" {
  description = "The folder of this machine's agent and of all data; left out, .headrace of the checkout."
  type        = string
  default     = null
}

variable "datacenters" {
  description = "Where services publish: each a /24 of loopback."
  type = list(object({
    name            = string
    network         = string
    brokers         = optional(number, 3)
    broker_settings = optional(map(string), {})
  }))
  default = [
    { name = "east", network = "127.1.0" },
    { name = "west", network = "127.2.0" },
  ]
}

variable "analysis" {
  description = "Where everything is mirrored to."
  type = object({
    name            = optional(string, "analysis")
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
  description = "Topics of each datacenter where services publish."
  type        = map(object({ partitions = number }))
  default     = { page-view = { partitions = 3 } }
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
