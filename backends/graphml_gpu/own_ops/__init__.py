"""Kernels for GPUs that come with ops of one's own: `own_kernels` describes how they are declared."""
