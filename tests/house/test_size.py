"""How large the product is: its lines of Python by room, and the most that they may be together.

A change that needs more raises BUDGET in the same commit, whose message says for what. `pytest -s` or a
failure shows the lines of every room.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Roots of the product, and how many names of a path below them make a room.
PRODUCT = {"graphml": 2, "backends": 2, "models": 1, "quant": 1}
# 2 % above the lines of 28 November 2026, when the runtime was one (146,826); then what people asked for: a
# config file, models at addresses, other systems (1,000 lines), tools by MCP (550), histories and calls as
# clients send them and families write them (1,600), less 300 that were repeats; a command line that
# knows what people type in other programs (390) or write in Python (180),
# and reasoning that ends behind a budget (290); bounds of what requests ask of sampling (150),
# a guard of every reader of a file (230), calls and results that were lost or
# invented (230), embeddings of clients that have left (50),
# what a third walk typed (410), and several models side by side (850);
# seven families' calls (290), structures of clients that are compiled in processes first and in turn (580),
# bounds of bodies, connections and readers (600), and what a fourth walk typed (285);
# texts to embed that hold up nobody (65), what llama-server's tests ask of a router and its streams (75),
# published folders: fields that classes read, tokens of several files, LongRoPE by a text's length (310);
# folders of PEFT as adapters (560), and what a fifth walk typed (80);
# caches that are kept as transforms, on every backend (260), folders of encoders and of
# sentence-transformers (940), seven packings of weights (1,230), twelve causal types (560),
# fields that a config lacks or makes null (90), and what a sixth walk typed (170);
# tokenizers of RWKV, PLaMo 2 and DNA (180), sixteen architectures and six families (2,090),
# text of diffusion models (820), types of caches by layer (80),
# what a seventh walk typed (130), EAGLE-3 (370), eleven causal types (740), what an eighth walk typed (170),
# an answer's denoising on the page (60) and further models of a command line (50);
# assistants of Gemma 4, which read the model's cells (330), and drafts of blocks by DFlash and DSpark (430),
# six types more (900), what a ninth walk typed (40), graphs as modules of PyTorch (1,090), times and counts
# of answers that are stopped (40), published configs (50), what a caller's arrays are checked for (110), what
# a tenth and an eleventh walk typed (150), imports that see far positions, sinks, unit rows, lists of parts,
# keys of other layers, plain experts and files of weights (480), what verify is held to (160), imports of
# short convolutions, shifts, hashes of ids, several softmax maps and values of other layers (1,000),
# adapters that are trained: examples, factors, steps, checkpoints (1,010), and definitions that files of
# imports carry, with tokenizers of plain modules (180), fields that no class of a family reads (120); eleven
# families of folders and two of drafters (520); what a twelfth walk typed: names of values in llama.cpp,
# tensors as arrays, types as texts (1,000); imports that are tried on other configs (560), mistakes that
# verify names of layers, experts, sums and pairs, with names of checkpoints (320), and imports of 22 more
# classes of transformers: latent attention, experts, ropes, positions, what parameters compute (750); imports
# of linear attention, running sums, streams, layers that are called again (640); batch jobs (690);
# families of Mistral 4, MiniMax-01 and Qwen3-Omni, and DeepSeek-V2's groups (250);
# what a thirteenth and a fourteenth walk typed: forms, names of arguments, second words, calls of engines
# and of names (550); engines and replicas on several machines by Ray, stages and benchmarks there (2,560),
# replicas on paper (1,350); folders of authors' own classes and of drafters (800); imports of recurrent
# classes (750); imports handed on with what was edited and trained (300);
# encoders of the formats of files (2,100); KL divergence, importance of columns and
# files in other types (1,700); encoders of formats with codebooks (1,200); plans under way in stages and
# stages by memory (500); imports written back as folders of transformers (1,000);
# types chosen by costs, checks of files, what fits into memory (1,100); adapters of PEFT written, control
# vectors (800); tasks and strides (500); folders as GGUF files, gguf (1,300); work over Ray (200);
# files of texts to rows, prompts of families (900); encoders as GGUF, work that goes on (500); speed (250).
BUDGET = 199_500


def lines_by_room(root: Path) -> Counter[str]:
    """Lines of the product's Python files, by folder."""
    rooms: Counter[str] = Counter()
    for top, depth in PRODUCT.items():
        for path in (root / top).rglob("*.py"):
            folder = path.relative_to(root).parent.parts
            rooms["/".join(folder[:depth])] += len(path.read_text(encoding="utf-8").splitlines())
    return rooms


def table(rooms: Counter[str]) -> str:
    """Rooms and their lines, the largest first, and all of them together."""
    rows = [f"{lines:8,}  {room}" for room, lines in rooms.most_common()]
    return "\n".join([*rows, f"{rooms.total():8,}  all"])


def test_the_product_stays_within_its_budget() -> None:
    rooms = lines_by_room(ROOT)
    print(f"\n{table(rooms)}")
    assert rooms.total() <= BUDGET, (
        f"the product has {rooms.total():,} lines of Python, {rooms.total() - BUDGET:,} above its budget: "
        f"delete something, or raise BUDGET in this commit and say in its message for what\n{table(rooms)}"
    )


def test_every_line_of_a_room_counts(tmp_path: Path) -> None:
    for file in ("graphml/ir/node.py", "graphml/ir/methods/norm.py", "graphml/errors.py", "models/a/b.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("1\n\n2\n")
    (tmp_path / "graphml" / "notes.md").write_text("1\n")
    assert lines_by_room(tmp_path) == {"graphml/ir": 6, "graphml": 3, "models": 3}
