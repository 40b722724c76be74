output "datacenters" {
  description = "The addresses for services and consumers in east and west."
  value = {
    for datacenter in [module.east, module.west] : datacenter.name => {
      balancer          = datacenter.balancer
      bootstrap_servers = datacenter.bootstrap_servers
      registry_url      = datacenter.registry_url
      zookeeper         = datacenter.zookeeper
      brokers           = length(datacenter.brokers)
    }
  }
}

output "analysis" {
  description = "The addresses in the analysis datacenter: brokers, registry, ZooKeeper, HDFS, Airflow and mirrors."
  value = {
    bootstrap_servers = module.analysis.bootstrap_servers
    registry_url      = module.analysis.registry_url
    zookeeper         = module.analysis.zookeeper
    hdfs_url          = module.analysis.hdfs_url
    webhdfs_url       = module.analysis.webhdfs_url
    airflow_url       = module.analysis.airflow_url
    mirrors           = module.analysis.mirrors
  }
}

output "audit_store" {
  description = "The audit store, for `terraform output -json | headrace context import NAME`."
  value       = local.audit_store
  sensitive   = true
}
