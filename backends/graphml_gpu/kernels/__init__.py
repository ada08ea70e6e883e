"""The kernels, by family. Know nothing of devices and graphs."""
