"""A tiny random llama with a real byte-level vocabulary and a chat template, written as a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

from graphml.text.tokenizer.pieces import LETTER_BYTES

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld"]
SPECIAL = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
BEGIN, START, END = range(3)
N_CTX, WIDTH, LAYERS, HEADS, KV_HEADS, HIDDEN = 160, 32, 2, 4, 2, 64
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NORMAL, CONTROL = 1, 3
MASK = "<|mdm_mask|>"


def vocabulary() -> list[str]:
    """The control tokens, the 256 bytes as GPT-2's letters, and what the merges make."""
    return [*SPECIAL, *LETTER_BYTES, *(merge.replace(" ", "") for merge in MERGES)]


def write(
    path: Path,
    *,
    template: str | None = CHATML,
    tokenizer: bool = True,
    add_bos: bool = False,
    seed: int = 5,
    n_ctx: int = N_CTX,
    architecture: str = "llama",
    more: Sequence[str] = (),
    ahead: bool = False,
    sampling: Mapping[str, float] | None = None,
    denoises: bool = False,
    texts: Mapping[str, str] | None = None,
) -> Path:
    """Write the model; without `tokenizer` it says that it has no vocabulary.

    architecture: what it calls itself; its tensors are llama's. more: control tokens at the vocabulary's end.
    ahead: one more layer, for multi-token prediction. denoises: a diffusion model, LLaDA, with `MASK` as the
    last token. sampling: `general.sampling.NAME` -> value. texts: further keys.
    """
    writer = gguf.GGUFWriter(path, "llada" if denoises else architecture)
    more = [*more, MASK] if denoises else more
    tokens = [*vocabulary(), *more]
    if denoises:
        writer.add_mask_token_id(len(tokens) - 1)
        writer.add_diffusion_shift_logits(False)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS + ahead)
    if ahead:
        writer.add_nextn_predict_layers(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2" if tokenizer else "no_vocab")
    if tokenizer:
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        normal = [NORMAL] * (len(tokens) - len(SPECIAL) - len(more))
        writer.add_token_types([CONTROL] * len(SPECIAL) + normal + [CONTROL] * len(more))
        writer.add_token_merges(MERGES)
        writer.add_bos_token_id(BEGIN)
        writer.add_eos_token_id(END)
        writer.add_add_bos_token(add_bos)
    if template is not None:
        writer.add_chat_template(template)
    for key, text in (texts or {}).items():
        writer.add_string(key, text)
    for name, setting in (sampling or {}).items():
        add = writer.add_int32 if isinstance(setting, int) else writer.add_float32
        add(f"general.sampling.{name}", setting)
    generator = np.random.default_rng(seed)
    for name, shape in shapes(len(tokens), ahead).items():
        values = 2 * generator.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
        writer.add_tensor(name, np.ones(shape, np.float32) if len(shape) == 1 else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shapes(n_vocab: int, ahead: bool = False) -> dict[str, tuple[int, ...]]:
    """Name -> NumPy shape of the tensors."""
    kv_width = WIDTH // HEADS * KV_HEADS
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (n_vocab, WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    found["output.weight"] = (n_vocab, WIDTH)
    for layer in range(LAYERS + ahead):
        part = f"blk.{layer}."
        found |= {
            part + "attn_norm.weight": (WIDTH,),
            part + "attn_q.weight": (WIDTH, WIDTH),
            part + "attn_k.weight": (kv_width, WIDTH),
            part + "attn_v.weight": (kv_width, WIDTH),
            part + "attn_output.weight": (WIDTH, WIDTH),
            part + "ffn_norm.weight": (WIDTH,),
            part + "ffn_gate.weight": (HIDDEN, WIDTH),
            part + "ffn_up.weight": (HIDDEN, WIDTH),
            part + "ffn_down.weight": (WIDTH, HIDDEN),
        }
    if ahead:
        part = f"blk.{LAYERS}.nextn."
        norms = (part + one + ".weight" for one in ("enorm", "hnorm", "shared_head_norm"))
        found |= dict.fromkeys(norms, (WIDTH,))
        found[part + "eh_proj.weight"] = WIDTH, 2 * WIDTH
    return found
