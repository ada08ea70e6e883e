"""Responses: JSON, errors as clients see them, and streams of events that a client can resume."""
