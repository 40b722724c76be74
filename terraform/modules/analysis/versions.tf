terraform {
  required_version = ">= 1.9"

  required_providers {
    headrace = {
      source = "headrace.local/headrace/headrace"
    }
  }
}
