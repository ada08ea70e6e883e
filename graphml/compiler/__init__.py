"""Graph to program: passes, partitions over devices, layers by memory. Knows nothing of files or tokens."""
