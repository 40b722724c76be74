"""The drill on a running site: plants failures into the canary topic, and asks the audit for their names.

Everything is done from outside, as a service would do it: by publishers of its own, through the site's own
balancers. No file and no topic of anybody else is touched.
"""
