"""Q5_1: float16 scale d and minimum m, a word of fifth bits, then as Q4_1; x = d q + m."""

from graphml_gpu.kernels.formats._nibble_blocks import nibble_reader

Q5_1 = nibble_reader(minimum=True, fifth=True)
