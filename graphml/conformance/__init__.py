"""The conformance suite: what the author of a backend runs, and what the tests run on every backend."""
