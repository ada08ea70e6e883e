"""Ops whose state is one value per sequence: state spaces, linear attention, the last tokens."""
