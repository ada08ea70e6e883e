"""Published configs, of which the loader must understand every field: facts of `config.json`, no weights.

    python -m tests.published_configs SOURCE FILE ...

adds files that are named `OWNER--MODEL_config.json`, or OWNER/MODEL/config.json, to
`tests/data/published_configs.jsonl`: one line a model, its language model's fields without those that are
null. Of a `quantization_config` above 3 KB lists, and objects by module, keep their first entries. Models
whose model_type no family has are left out, and so are those whose fields another one has with the same
values, whatever their `quantization_config`. SOURCE says where the files are from.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from graphml.loading import discovery
from graphml.loading.huggingface.folder import language_model

DATA = Path(__file__).parent / "data" / "published_configs.jsonl"
PACKING, LAYERS = "quantization_config", "quantized_layers"
LARGEST, MOST = 3000, 4
SHORTENED = f"; {PACKING} shortened"


class Published(NamedTuple):
    """A model by its name on the hub, where its config was read, and the fields of its language model."""

    model: str
    source: str
    config: dict[str, Any]

    @property
    def plain(self) -> dict[str, Any]:
        """The fields but those of quantisation."""
        return {name: value for name, value in self.config.items() if name != PACKING}


def published() -> Iterator[Published]:
    """All models of the file."""
    for line in DATA.read_text(encoding="utf-8").splitlines():
        yield Published(**json.loads(line))


def name_of(file: Path) -> str:
    """OWNER/MODEL, from the name of the file or those of its folders."""
    stem = file.name.removesuffix("config.json").rstrip("_")
    return stem.replace("--", "/") if stem else "/".join(file.parts[-3:-1])


def shortened(value: Any, name: str = PACKING) -> Any:
    """A `quantization_config` whose lists, and objects by module, have their first entries alone."""
    if isinstance(value, list):
        return value[:MOST]
    if isinstance(value, dict):
        entries = list(value.items())[: MOST if name == LAYERS else None]
        return {inner: shortened(of, inner) for inner, of in entries}
    return value


def read(source: str, file: Path) -> Published:
    """The model of a file."""
    fields = language_model(json.loads(file.read_text(encoding="utf-8")))
    kept = {name: value for name, value in fields.items() if value is not None}
    if len(json.dumps(kept.get(PACKING, {}))) > LARGEST:
        kept[PACKING], source = shortened(kept[PACKING]), source + SHORTENED
    return Published(name_of(file), source, kept)


def main(source: str, files: list[str]) -> None:
    """Add files; a model that is there already is replaced."""
    known = {config.model: config for config in (published() if DATA.exists() else ())}
    for file in map(Path, files):
        new = read(source, file)
        twin = any(new.plain == other.plain for other in known.values() if other.model != new.model)
        if new.config.get("model_type") in discovery.families() and not twin:
            known[new.model] = new
    lines = [json.dumps(known[model]._asdict()) for model in sorted(known)]
    DATA.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
