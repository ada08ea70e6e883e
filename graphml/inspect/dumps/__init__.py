"""What a compiled graph is, as values and texts: documents, dump formats, diffs, explanations."""
