"""An open model at work: programs, caches, steps of ids. Knows no text and no protocol."""
