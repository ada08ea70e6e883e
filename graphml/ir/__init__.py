"""What a graph is: types, ops and their NumPy meaning, builder, verifier, text form, interpreter.

Knows nothing of files, backends, models or tokens.
"""
