"""A new topic on a whole site: its schema, its partitions, its copy, its load, its DAGs, its contract test.

`wanted` is what a user asks for, `present` what is there, `deciding` the plan (pure), `making` carries it
out. A plan with conflicts changes nothing; a plan that was interrupted is finished by the next run. `hcl`
writes the same for installations that Terraform manages.
"""
