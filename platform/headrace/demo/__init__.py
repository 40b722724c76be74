"""The demo: every step of the way from a service to the audit report, on the site that runs here."""
