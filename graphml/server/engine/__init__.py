"""The engine as handlers use it, and what the server keeps of earlier requests."""
