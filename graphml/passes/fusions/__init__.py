"""One file a fusion: the fused op with its decomposition, and the terms that it replaces."""
