"""A folder of transformers in llama.cpp's terms: keys, vocabulary, what its README says."""
