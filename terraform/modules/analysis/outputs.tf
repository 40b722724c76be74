output "bootstrap_servers" {
  description = "The first brokers, HOST:PORT each."
  value       = module.datacenter.bootstrap_servers
}

output "brokers" {
  description = "Every broker by its id: host, unit, listen."
  value       = module.datacenter.brokers
}

output "registry_url" {
  description = "The schema registry."
  value       = module.datacenter.registry_url
}

output "zookeeper" {
  description = "ZooKeeper, HOST:PORT,…"
  value       = module.datacenter.zookeeper
}

output "mirrors" {
  description = "Where each mirror tells how far it is, by the source's name."
  value       = { for source, mirror in headrace_mirror.this : source => "http://${mirror.status}/status" }
}

output "hdfs_url" {
  description = "HDFS, for Spark and Hadoop's own clients."
  value       = local.hdfs_url
}

output "webhdfs_url" {
  description = "HDFS over HTTP; its page, too."
  value       = local.webhdfs_url
}

output "airflow_url" {
  description = "Airflow's page; null without Airflow."
  value       = var.airflow == null ? null : "http://${one(headrace_airflow.api_server[*].listen)}"
}
