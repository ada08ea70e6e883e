"""Makes the tokenizer that the metadata of a model file describes, with the encoder of its kind.

Knows which encoder is for which kind; encodes nothing.
"""

from __future__ import annotations

from graphml.errors import TokenizerError
from graphml.system.read_files import guarded
from graphml.text.tokenizer.byte_bpe import byte_pair_encoder
from graphml.text.tokenizer.huggingface import KEY, HuggingFaceTokenizer
from graphml.text.tokenizer.hybrid_dna import HybridDnaEncoder
from graphml.text.tokenizer.plamo2 import BestSumEncoder
from graphml.text.tokenizer.rwkv import LongestMatchEncoder
from graphml.text.tokenizer.spm import ScoredPairEncoder
from graphml.text.tokenizer.tokenizer import Encoder, Tokenizer
from graphml.text.tokenizer.unigram import unigram_encoder
from graphml.text.tokenizer.vocabulary import Vocabulary, read_vocabulary
from graphml.text.tokenizer.wordpiece import WordPieceEncoder
from graphml.weights import Metadata


def load_tokenizer(metadata: Metadata, pre: str | None = None) -> Tokenizer:
    """Make the tokenizer that the metadata of a model file describes.

    `pre` overrides the file's `tokenizer.ggml.pre`. A byte-pair vocabulary without that key is split by
    `default`, as llama.cpp does, with a warning in the log. For a file without a vocabulary every use of the
    tokenizer fails. Raises TokenizerError for a kind or pre-tokenizer that is unknown and
    for a damaged vocabulary, UsageError for `pre` with a kind that has no pre-tokenizer, WeightsError for
    a missing key or one of a wrong type.
    """
    with guarded(metadata.path, TokenizerError, "its vocabulary is damaged"):
        vocabulary = read_vocabulary(metadata, pre)
        if vocabulary.kind == "huggingface":
            return HuggingFaceTokenizer(vocabulary, metadata.text(KEY))
        return Tokenizer(vocabulary, _encoder(vocabulary, metadata))


def _encoder(vocabulary: Vocabulary, metadata: Metadata) -> Encoder | None:
    if vocabulary.kind == "none":
        return None
    if vocabulary.kind == "spm":
        return ScoredPairEncoder(vocabulary)
    if vocabulary.kind == "wordpiece":
        return WordPieceEncoder(vocabulary)
    if vocabulary.kind == "unigram":
        return unigram_encoder(vocabulary, metadata)
    if vocabulary.kind == "rwkv":
        return LongestMatchEncoder(vocabulary)
    if vocabulary.kind == "plamo2":
        return BestSumEncoder(vocabulary)
    words = byte_pair_encoder(vocabulary, metadata)
    return HybridDnaEncoder(vocabulary, words.encode) if vocabulary.model == "hybriddna" else words
