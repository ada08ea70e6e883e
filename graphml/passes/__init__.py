"""Passes: graph -> graph (fusions, activations) and graph -> plan (memory).

Each is a function that leaves a valid graph. Knows backends only through `graphml.backend`.
"""
