"""Architecture files from PyTorch modules: traced, recognised by behaviour, written, proved."""
