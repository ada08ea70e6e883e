"""Name or folder to a model file and its architecture: downloads, entry points, metadata. Runs nothing."""
