"""What GPU backends share: the kernel language, kernels, the runtime, and the driver each has to bring."""
