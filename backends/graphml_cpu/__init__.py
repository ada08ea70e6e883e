"""The CPU backend."""
