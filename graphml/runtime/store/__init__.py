"""Prefixes beyond memory: what an engine keeps in files, takes out of its pools and puts into others."""
