"""The conformance suite, for authors of backends and for the tests of every backend."""
