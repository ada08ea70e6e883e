"""Verification of an architecture: its graph in float32 against another program's values, layer by layer."""
