"""Graph to program: passes, partitions over devices, layers by memory. No file names, no ids."""
