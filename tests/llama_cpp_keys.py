"""Which keys and tensors each architecture of llama.cpp reads, by its sources: a tool for developers.

    python -m tests.llama_cpp_keys FOLDER

FOLDER has llama.cpp's sources. It writes `graphml/authoring/llama_cpp/read_by_llama_cpp.txt` anew, by which
`graphml convert` refuses what llama.cpp would not read. What an architecture reads only under a condition
counts as read.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

RECORD = Path(__file__).parents[1] / "graphml" / "authoring" / "llama_cpp" / "read_by_llama_cpp.txt"
QKV = [f"blk.#.attn_{part}.{kind}" for part in ("qkv", "q", "k", "v") for kind in ("weight", "bias")]
HELPERS = {
    "create_tensor_qkv(": QKV,
    "create_tensor_gate_up_exps(": [f"blk.#.ffn_{part}_exps.weight" for part in ("gate_up", "gate", "up")],
}
_KEY = re.compile(r"get_(?:key|arr|key_or_arr|arr_n)\(\s*(LLM_KV_\w+)")
_TENSOR = re.compile(r"tn\(\s*(LLM_TENSOR_\w+)\s*(?:,\s*\"(\w+)\")?\s*(,\s*[^)]+)?\)")


def names_of(sources: Path) -> dict[str, tuple[set[str], set[str]]]:
    """Architecture -> its keys, without its name, and its tensors with # for the layer; "*": of all."""
    table = (sources / "llama-arch.cpp").read_text()
    architectures = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"', table))
    keys = {of: name.removeprefix("%s.") for of, name in re.findall(r'\{\s*(LLM_KV_\w+),\s*"([^"]+)"', table)}
    tensors = dict(re.findall(r'\{\s*(LLM_TENSOR_\w+),\s*"([^"]+)"', table))

    def read(text: str) -> tuple[set[str], set[str]]:
        came = {keys[of] for of in _KEY.findall(text) if of in keys}
        if "load_swa_pattern(" in text:
            came.add(keys["LLM_KV_ATTENTION_SLIDING_WINDOW_PATTERN"])
        held = {
            tensors[of].replace("%d", "#") + (f".{kind}" if kind else "")
            for of, kind, _ in _TENSOR.findall(text)
            if of in tensors
        }
        for call, more in HELPERS.items():
            held.update(more if call in text else ())
        return came, held

    models = (sources / "models" / "models.h").read_text()
    parents = dict(re.findall(r"struct (llama_model_\w+) : public (llama_model_\w+)", models))
    classes: dict[str, tuple[set[str], set[str]]] = {}
    calls: dict[str, set[str]] = {}
    for path in sorted((sources / "models").glob("*.cpp")):
        for name, _kind, body in _functions(path.read_text()):
            came, held = read(body)
            known = classes.setdefault(name, (set(), set()))
            known[0].update(came)
            known[1].update(held)
            calls.setdefault(name, set()).update(
                f"llama_model_{other}" for other in re.findall(r"llama_model_(\w+)::load_arch_", body)
            )
    common = (sources / "llama-model.cpp").read_text()
    whole = read(common[common.index("llama_model_base::load_hparams") :])
    more = r"(?:\s*case LLM_ARCH_\w+:)*"
    mapping = re.findall(rf"case (LLM_ARCH_\w+):\s*(?=({more}\s*return new (\w+)\())", common)
    done = {"*": whole}
    for of, _, name in mapping:
        came, held = set[str](), set[str]()
        queue = [name]
        while queue:
            one = queue.pop()
            if one in classes:
                came |= classes[one][0]
                held |= classes[one][1]
            queue += [parents[one]] if one in parents and parents[one] != "llama_model_base" else []
            queue += sorted(calls.pop(one, ()))
        calls = {key: set(value) for key, value in calls.items()}
        done[architectures[of]] = came, held
    return done


def _functions(text: str) -> list[tuple[str, str, str]]:
    """Class, function and body of each function that loads."""
    starts = [*re.finditer(r"^void (llama_model_\w+)::(load_arch_\w+)\(", text, re.M)]
    return [(m[1], m[2], text[m.end() : text.find("\n}", m.end())]) for m in starts]


def main(sources: Path) -> None:
    """Write the record."""
    lines = []
    for name, (keys, tensors) in sorted(names_of(sources).items()):
        lines.append(f"{name}: {' '.join(sorted(keys))} | {' '.join(sorted(tensors))}".rstrip())
    RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "src")
