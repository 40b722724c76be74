output "bootstrap_servers" {
  description = "The bootstrap brokers, HOST:PORT each."
  value       = module.datacenter.bootstrap_servers
}

output "brokers" {
  description = "All brokers, by id: host, unit, listen."
  value       = module.datacenter.brokers
}

output "registry_url" {
  description = "The URL of the schema registry."
  value       = module.datacenter.registry_url
}

output "zookeeper" {
  description = "The ZooKeeper servers, HOST:PORT,…"
  value       = module.datacenter.zookeeper
}

output "mirrors" {
  description = "The URL of each mirror's status, by source datacenter."
  value       = { for source, mirror in headrace_mirror.this : source => "http://${mirror.status}/status" }
}

output "hdfs_url" {
  description = "The URL of HDFS for Spark and Hadoop's own clients."
  value       = local.hdfs_url
}

output "webhdfs_url" {
  description = "The URL of WebHDFS and of the NameNode's page."
  value       = local.webhdfs_url
}

output "airflow_url" {
  description = "The URL of Airflow; null without Airflow."
  value       = var.airflow == null ? null : "http://${one(headrace_airflow.api_server[*].listen)}"
}
