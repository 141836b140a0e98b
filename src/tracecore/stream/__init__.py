"""`tracecore detect`: incidents from a Kafka topic with facts, by workers that share its partitions."""
