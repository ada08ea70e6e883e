"""The filters of the sampler chain, one file each: a function of candidates, and its `FILTER`.

Meaning as in llama.cpp (src/llama-sampler.cpp); where that leaves the order of equal logits open, the lower
token id comes first. A file knows its own filter; nothing of the order of the filters or of random numbers.
"""
