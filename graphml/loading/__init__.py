"""Finds the file and the architecture of a model name: downloads, entry points, metadata. Runs nothing."""
