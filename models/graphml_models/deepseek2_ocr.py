"""DeepSeek-OCR (Wei et al. 2025, arXiv:2510.18234), on text alone: DeepSeekMoE with a rope of halves."""

from functools import partial

from graphml_models import deepseek, gemma, llama
from graphml_models._routing import Config as Config
from graphml_models._routing import shared_and_chosen

build = partial(llama.build, attention=gemma.attention, feed_forward=shared_and_chosen)
sample = deepseek.sample  # tiny models for tests
