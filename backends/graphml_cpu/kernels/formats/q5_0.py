"""Q5_0: blocks of 32 in 22 bytes: d, 32 fifth bits, 16 bytes of nibbles; x = d (q - 16)."""

from graphml_cpu.kernels.formats._nibble_blocks import NibbleBlocks

_layout = NibbleBlocks(fifth=True)
make_decode, make_encode, make_read = _layout.make_decode, _layout.make_encode, _layout.make_read
