"""The loop of an engine: which sequences wait and run, the next step's plan, and who gets its tokens."""
