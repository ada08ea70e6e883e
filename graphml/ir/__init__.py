"""Graphs: types, ops with their NumPy references, builder, verifier, text form, interpreter.

Knows nothing of files, backends, models or tokens.
"""
