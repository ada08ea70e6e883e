"""Dream (Ye et al. 2025, arXiv:2508.15487), a diffusion model: qwen2 whose tokens see those after them."""

from graphml_models._config import Config as Config
from graphml_models.qwen2 import build as build
from graphml_models.qwen2 import sample as sample

CAUSAL = False
