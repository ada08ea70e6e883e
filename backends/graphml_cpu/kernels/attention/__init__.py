"""Attention over paged caches, and writing to these."""
