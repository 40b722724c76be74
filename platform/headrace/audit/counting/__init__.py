"""The auditor of one datacenter: counts its logs, resumes, counts past damage, takes counts by HTTP."""
