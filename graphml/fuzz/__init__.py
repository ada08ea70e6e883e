"""Random valid graphs, run on every backend in every way that must give the same: `graphml fuzz`."""
