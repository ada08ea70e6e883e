"""Looking at graphs and runs: dumps, diffs, traces. Reads what the engine keeps and changes nothing."""
