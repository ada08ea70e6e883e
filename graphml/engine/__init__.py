"""From a model file to programs that run: discovery, compilation, loading, caches."""
