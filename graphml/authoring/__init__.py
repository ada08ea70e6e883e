"""For authors of architectures: first drafts, the check against a reference, the catalogue of mistakes."""
