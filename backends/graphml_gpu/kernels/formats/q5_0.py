"""Q5_0: a float16 scale d, a word of fifth bits, then as Q4_0; x = d (q - 16)."""

from graphml_gpu.kernels.formats._nibble_blocks import nibble_reader

Q5_0 = nibble_reader(fifth=True)
