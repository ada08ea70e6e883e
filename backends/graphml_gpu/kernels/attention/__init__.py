"""Attention over paged caches, and the elements of these."""
