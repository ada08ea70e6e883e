"""Peer programs: measure or record other engines, each run by its path with a Python that has the engine."""
