# LinkedIn's deployment from the paper, on one machine: services publish in east and west, both are mirrored into
# analysis, and Airflow loads the topics into HDFS. The units are exactly those of `headrace up`, so its commands work
# on them, too. `make demo` applies this folder.
terraform {
  required_version = ">= 1.9"

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
  home     = coalesce(var.home, abspath("${local.checkout}/.headrace"))

  audit_store = "sqlite:///${local.home}/data/analysis/audit.db"
}

module "east" {
  source = "../../modules/datacenter"

  name            = "east"
  hosts           = [{ agent = "local", network = var.east.network }]
  brokers         = var.east.brokers
  broker_settings = merge(var.broker_settings, var.east.broker_settings)
  topics          = var.topics
  data_dir        = "${local.home}/data/east"
}

module "west" {
  source = "../../modules/datacenter"

  name            = "west"
  hosts           = [{ agent = "local", network = var.west.network }]
  brokers         = var.west.brokers
  broker_settings = merge(var.broker_settings, var.west.broker_settings)
  topics          = var.topics
  data_dir        = "${local.home}/data/west"
}

module "analysis" {
  source = "../../modules/analysis"

  name            = "analysis"
  hosts           = [{ agent = "local", network = var.analysis.network }]
  brokers         = var.analysis.brokers
  broker_settings = merge(var.broker_settings, var.analysis.broker_settings)
  sources         = [module.east.source, module.west.source]
  audit_store     = local.audit_store
  airflow = {
    home         = "${local.home}/airflow"
    dags         = coalesce(var.airflow.dags, abspath("${local.checkout}/dags"))
    python       = coalesce(var.airflow.python, abspath("${local.checkout}/.venv-airflow/bin/python"))
    job_python   = coalesce(var.airflow.job_python, abspath("${local.checkout}/.venv/bin/python"))
    database     = var.airflow.database
    database_url = var.airflow.database_url
  }
  data_dir = "${local.home}/data/analysis"
}
