"""The settings of brokers and topics: names, types, defaults, bounds, and which change at run time."""
