"""Q4_1: float16 scale d and minimum m, then 16 bytes of two 4-bit numbers q; x = d q + m."""

from graphml_gpu.kernels.formats._nibble_blocks import nibble_reader

Q4_1 = nibble_reader(minimum=True)
