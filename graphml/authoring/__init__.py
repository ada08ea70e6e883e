"""Tools for authors of architectures: first drafts, verification, the catalogue of mistakes."""
