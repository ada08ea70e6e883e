"""Q4_0: a float16 scale d, then 16 bytes of two 4-bit numbers q; x = d (q - 8)."""

from graphml_gpu.kernels.formats._nibble_blocks import nibble_reader

Q4_0 = nibble_reader()
