"""A model as a folder of transformers: its family's mapping inverted, written, opened again and compared."""
