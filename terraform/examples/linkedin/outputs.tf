output "datacenters" {
  description = "Where services publish and consumers read."
  value = {
    for datacenter in [module.east, module.west] : datacenter.name => {
      balancer          = datacenter.balancer
      bootstrap_servers = datacenter.bootstrap_servers
      registry_url      = datacenter.registry_url
      brokers           = length(datacenter.brokers)
    }
  }
}

output "analysis" {
  description = "Where the copies are, and what is made of them."
  value = {
    bootstrap_servers = module.analysis.bootstrap_servers
    registry_url      = module.analysis.registry_url
    webhdfs_url       = module.analysis.webhdfs_url
    airflow_url       = module.analysis.airflow_url
    mirrors           = module.analysis.mirrors
  }
}
