"""The schema registry: Confluent's REST interface over ZooKeeper, its client, and the Avro serializers."""
