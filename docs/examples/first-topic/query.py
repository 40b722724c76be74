"""How many orders, and what they are worth, by service: query.py. A table has its sealed hours alone."""

from headrace.tables import connect

table = connect("site").table("order-placed")
orders = table.pandas(columns=["header", "total"])
service = orders["header"].str.get("service").rename("service")
print(*table.hours(), sep=",")
print(orders.groupby(service)["total"].agg(["count", "sum"]))
