# LinkedIn's deployment of the paper on one machine: services publish in east and west, both are mirrored into
# analysis, whose Airflow loads the topics into HDFS. These are the units of `headrace up`, one by one, so that the
# commands work on them; `make demo` applies this folder.
terraform {
  required_version = ">= 1.6"

  required_providers {
    headrace = {
      source = "headrace.local/headrace/headrace"
    }
  }
}

provider "headrace" {
  home = local.home
}

locals {
  checkout = "${path.module}/../../.."
  home     = abspath(coalesce(var.home, "${local.checkout}/.headrace"))
}

module "datacenter" {
  source   = "../../modules/datacenter"
  for_each = { for datacenter in var.datacenters : datacenter.name => datacenter }

  name            = each.key
  hosts           = [{ agent = "local", network = each.value.network }]
  brokers         = each.value.brokers
  broker_settings = merge(var.broker_settings, each.value.broker_settings)
  topics          = var.topics
  data_dir        = "${local.home}/data/${each.key}"
}

module "analysis" {
  source = "../../modules/analysis"

  name            = var.analysis.name
  hosts           = [{ agent = "local", network = var.analysis.network }]
  brokers         = var.analysis.brokers
  broker_settings = merge(var.broker_settings, var.analysis.broker_settings)
  sources         = [for datacenter in var.datacenters : module.datacenter[datacenter.name].source]
  audit_store     = "sqlite:///${local.home}/data/${var.analysis.name}/audit.db"
  airflow = {
    home         = "${local.home}/airflow"
    dags         = abspath(coalesce(var.airflow.dags, "${local.checkout}/dags"))
    python       = abspath(coalesce(var.airflow.python, "${local.checkout}/.venv-airflow/bin/python"))
    job_python   = abspath(coalesce(var.airflow.job_python, "${local.checkout}/.venv/bin/python"))
    database_url = var.airflow.database_url
  }
  data_dir = "${local.home}/data/${var.analysis.name}"
}
