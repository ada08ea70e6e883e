import struct

import numpy as np
import pytest

from graphml.errors import WeightsError
from graphml.weights import open_model
from tests.stories import STORIES


def checkpoint(numbers, extra=0):
    """A checkpoint whose float32 weights count up from 0."""
    width, hidden, layers, heads, kv_heads, vocabulary, context = numbers
    kv_width = width // heads * kv_heads
    per_layer = 2 * width + 2 * width * width + 2 * kv_width * width + 3 * width * hidden
    n = (
        abs(vocabulary) * width * (2 if vocabulary < 0 else 1)
        + layers * per_layer
        + width
        + context * width // heads
    )
    return struct.pack("<7i", *numbers) + np.arange(n + extra, dtype="<f4").tobytes()


def tokenizer(words):
    entries = [(-float(index), word.encode()) for index, word in enumerate(words)]
    return struct.pack("<i", 9) + b"".join(struct.pack("<fi", s, len(raw)) + raw for s, raw in entries)


def test_the_stories_checkpoint():
    with open_model(STORIES) as model:
        metadata, tensors = model.metadata, model.tensors
        assert metadata.text("general.architecture") == "llama"
        assert [metadata.integer(f"llama.{key}") for key in ("embedding_length", "feed_forward_length")] == [
            64,
            172,
        ]
        assert metadata.integer("llama.block_count") == 5
        assert metadata.integer("llama.attention.head_count") == 8
        assert metadata.integer("llama.attention.head_count_kv") == 4
        assert metadata.integer("llama.rope.dimension_count") == 8
        assert metadata.integer("llama.context_length") == 512
        assert metadata.number("llama.attention.layer_norm_rms_epsilon") == 1e-5
        assert len(tensors) == 1 + 5 * 9 + 1
        assert tensors["token_embd.weight"].shape == (512, 64)
        assert tensors["blk.4.attn_k.weight"].shape == (32, 64)
        assert tensors["blk.0.ffn_down.weight"].shape == (64, 172)
        assert tensors["blk.0.ffn_up.weight"].shape == (172, 64)
        assert "output.weight" not in tensors
        # A wrong place in the file would show: norms of a trained model are near one, weights near zero.
        for name, tensor in tensors.items():
            values = tensor.numpy()
            assert abs(values.mean() - (1 if name.endswith("norm.weight") else 0)) < (
                1.5 if "norm" in name else 0.1
            )
            assert values.std() > 0.01


def test_the_stories_tokenizer():
    metadata = open_model(STORIES).metadata
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = metadata.integers("tokenizer.ggml.token_type")
    scores = metadata.numbers("tokenizer.ggml.scores")
    assert (len(tokens), len(types), len(scores)) == (512, 512, 512)
    assert tokens[:5] == ["<unk>", "<s>", "</s>", "<0x00>", "<0x01>"]
    assert types[:4] == [2, 3, 3, 6]
    assert types[3:259] == [6] * 256
    assert set(types[259:]) == {1}
    assert "\u2581the" in tokens
    assert not any(" " in token for token in tokens)
    assert scores[tokens.index("\u2581the")] > scores[-1]
    assert metadata.text("tokenizer.ggml.model") == "llama"
    assert [metadata.integer(f"tokenizer.ggml.{name}_token_id") for name in ("unknown", "bos", "eos")] == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("vocabulary", [6, -6])
def test_weights_lie_where_llama2c_puts_them(tmp_path, vocabulary):
    path = tmp_path / "tiny.bin"
    path.write_bytes(checkpoint((8, 12, 2, 4, 2, vocabulary, 3)))
    tensors = open_model(path).tensors
    order = [("token_embd.weight", (6, 8))]
    for name, shape in (
        ("attn_norm", (8,)),
        ("attn_q", (8, 8)),
        ("attn_k", (4, 8)),
        ("attn_v", (4, 8)),
        ("attn_output", (8, 8)),
        ("ffn_norm", (8,)),
        ("ffn_gate", (12, 8)),
        ("ffn_down", (8, 12)),
        ("ffn_up", (12, 8)),
    ):
        order += [(f"blk.{layer}.{name}.weight", shape) for layer in range(2)]
    order += [("output_norm.weight", (8,)), ("", (3, 2))]
    if vocabulary < 0:
        order += [("output.weight", (6, 8))]
    assert set(tensors) == {name for name, _ in order if name}
    start = 0
    for name, shape in order:
        n = int(np.prod(shape))
        if name:
            np.testing.assert_array_equal(tensors[name].numpy(), np.arange(start, start + n).reshape(shape))
        start += n


def test_the_tokenizer_beside_it(tmp_path):
    path = tmp_path / "tiny.bin"
    path.write_bytes(checkpoint((8, 12, 1, 4, 2, 6, 3)))
    metadata = open_model(path).metadata
    assert not metadata.has("tokenizer.ggml.tokens")
    with pytest.raises(WeightsError, match=r"tokenizer beside the checkpoint: no tok6.bin or tokenizer.bin"):
        metadata.texts("tokenizer.ggml.tokens")
    words = ["<unk>", "\n<s>\n", "\n</s>\n", "<0x0A>", " a b", "<0xZZ>"]
    (tmp_path / "tokenizer.bin").write_bytes(tokenizer(words))
    metadata = open_model(path).metadata
    wanted = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581a\u2581b", "<0xZZ>"]
    assert metadata.texts("tokenizer.ggml.tokens") == wanted
    assert metadata.integers("tokenizer.ggml.token_type") == [2, 3, 3, 6, 1, 1]
    assert metadata.numbers("tokenizer.ggml.scores") == [0, -1, -2, -3, -4, -5]
    (tmp_path / "tok6.bin").write_bytes(tokenizer([*words[:-1], "nearer"]))
    assert open_model(path).metadata.texts("tokenizer.ggml.tokens")[-1] == "nearer"


@pytest.mark.parametrize("change", [-1, -4, 4, -1000])
def test_a_checkpoint_of_the_wrong_size_is_refused(tmp_path, change):
    path = tmp_path / "cut.bin"
    raw = checkpoint((8, 12, 2, 4, 2, 6, 3))
    path.write_bytes(raw[:change] if change < 0 else raw + bytes(change))
    with pytest.raises(WeightsError, match=f"has {len(raw)} bytes, got {len(raw) + change}"):
        open_model(path)


@pytest.mark.parametrize(
    "numbers",
    [
        (8, 12, 2, 3, 1, 6, 3),
        (8, 12, 2, 4, 3, 6, 3),
        (4, 12, 2, 4, 2, 6, 3),
        (8, 12, -2, 4, 2, 6, 3),
        (8, 12, 5000, 4, 2, 6, 3),
        (1 << 30, 12, 2, 4, 2, 6, 3),
        (8, 12, 2, 4, 2, -(1 << 31), 3),
    ],
)
def test_headers_that_cannot_be_are_of_an_unknown_kind(tmp_path, numbers):
    path = tmp_path / "odd.bin"
    path.write_bytes(struct.pack("<7i", *numbers) + bytes(1000))
    with pytest.raises(WeightsError, match="unknown kind"):
        open_model(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tokenizer(["a"] * 6)[:-1], "token 5 of 6: a length of 1 bytes, 0 are left"),
        (tokenizer(["a"] * 5), "token 5 of 6: the file ends before it"),
        (tokenizer(["a"] * 7), "9 bytes after token 5"),
        (b"", "empty"),
        (struct.pack("<ifi", 9, 0.0, -1) + bytes(99), "token 0 of 6: a length of -1 bytes"),
        (struct.pack("<ifi", 9, 0.0, 1 << 30) + bytes(99), "token 0 of 6: a length of 1073741824 bytes"),
        (struct.pack("<ifi", 9, 0.0, 1) + b"\xff" + bytes(99), "token 0 of 6: not UTF-8"),
    ],
)
def test_a_bad_tokenizer_is_refused(tmp_path, content, message):
    path = tmp_path / "tiny.bin"
    path.write_bytes(checkpoint((8, 12, 1, 4, 2, 6, 3)))
    (tmp_path / "tokenizer.bin").write_bytes(content)
    with pytest.raises(WeightsError, match=message) as caught:
        open_model(path)
    assert "tokenizer.bin" in str(caught.value)
