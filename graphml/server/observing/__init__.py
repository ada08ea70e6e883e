"""What a server tells its operator: a log of requests, metrics, spans."""
