"""HunyuanOCR (Tencent 2025, arXiv:2511.19575), its language model on text alone: hunyuan-dense."""

from graphml.loading.architecture import SampleModel
from graphml_models._samples import HEAD_NORMS, SECTIONS, transformer
from graphml_models.hunyuan_dense import Config as Config
from graphml_models.hunyuan_dense import build as build


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, layer=HEAD_NORMS, tied=True, metadata=SECTIONS)]
