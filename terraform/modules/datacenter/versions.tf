terraform {
  required_version = ">= 1.6"

  required_providers {
    headrace = {
      source = "headrace.local/headrace/headrace"
    }
  }
}
