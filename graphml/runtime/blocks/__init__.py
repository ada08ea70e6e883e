"""Sequences, and the blocks of cells that hold them. Knows ids and blocks; knows no program and no plan."""
