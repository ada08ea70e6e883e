"""RND1 (Radical Numerics 2025), a diffusion model: qwen3moe whose tokens see those after them."""

from graphml_models._config import Config as Config
from graphml_models.qwen3moe import build as build
from graphml_models.qwen3moe import sample as sample

CAUSAL = False
