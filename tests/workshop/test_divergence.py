"""KL divergence beside a base model: the file, the figures, the command."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.errors import UsageError
from graphml.workshop.base_logits import n_scored, open_base, packed, row_size, writing_base
from graphml.workshop.divergence import Divergence, compare_rows
from graphml.workshop.text_scores import divergences, write_base
from tests import tiny_model
from tests.cli.test_commands import graphml_command

RNG = np.random.default_rng(4)
TEXT = "hello world, " * 40


def _base(path: Path, logits: np.ndarray, n_ctx: int) -> Path:
    ids = np.arange(n_ctx, dtype=np.int32)[None] % logits.shape[1]
    with writing_base(path, ids, logits.shape[1]) as writer:
        for row in logits:
            writer.add(row[None])
    return path


@pytest.mark.parametrize("n_vocab", [8, 9])
def test_a_file_holds_log_probabilities_of_words_that_are_not_too_rare(tmp_path: Path, n_vocab: int) -> None:
    logits = RNG.normal(0, 3, (n_scored(8), n_vocab)).astype(np.float32)
    logits[0, 0] = 40.0  # all others are more than 16 below
    logits[1] = 2.0
    base = open_base(_base(tmp_path / "base", logits, 8))
    assert (base.n_ctx, base.n_vocab, (tmp_path / "base").stat().st_size) == (
        8, n_vocab, 20 + 4 * 8 + 2 * 3 * row_size(n_vocab),
    )  # fmt: skip
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    written = base.log_probs(0, 0, 3)
    assert np.abs(written[1:] - exact[1:]).max() < 16 / 65535
    assert written[0, 0] == pytest.approx(0, abs=1e-3)
    assert np.allclose(written[0, 1:], -16, atol=1e-3)


def test_rows_are_those_of_the_format_number_by_number() -> None:
    row = packed(np.array([[1.0, -3.0, 2.0]], np.float32))[0]
    scale, least = struct.unpack("<2f", row[:4].tobytes())
    log_sum = math.log(math.exp(-1) + math.exp(-5) + 1)
    assert scale == pytest.approx(5 / 65535)
    assert least == pytest.approx(-3 - 2 - log_sum)
    assert row[4:].tolist() == [round(4 / 5 * 65535), 0, 65535, 0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: b"x" + data[1:], "wanted log-probabilities of a base model, which begin with _logits_"),
        (lambda data: data[:10], "begin with _logits_"),
        (lambda data: data[:-2], "It was cut short"),
        (lambda data: data + b"\0", "take .* bytes; got"),
        (lambda data: data[:8] + struct.pack("<i", -8) + data[12:], "wanted counts above 0; got n_ctx -8"),
        (lambda data: data[:16] + struct.pack("<i", 2**31 - 1) + data[20:], "2147483647 chunks of 8 tokens"),
        (lambda data: data[:20] + struct.pack("<i", 8) + data[24:], "wanted ids below 8; got 1 to 8"),
    ],
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, change: object, says: str) -> None:
    path = _base(tmp_path / "base", np.zeros((3, 8), np.float32), 8)
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(UsageError, match=f"base: .*{says}"):
        open_base(path)


def test_a_base_that_cannot_be_finished_leaves_what_was_there(tmp_path: Path) -> None:
    path = _base(tmp_path / "base", np.zeros((3, 8), np.float32), 8)
    before = path.read_bytes()

    def stopped() -> None:
        with writing_base(path, np.zeros((1, 8), np.int32), 8) as writer:
            writer.add(np.ones((1, 8), np.float32))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["base"]


def test_figures_are_their_formulas_spelled_out() -> None:
    logits = RNG.normal(0, 2, (40, 12)).astype(np.float32)
    other = (logits + RNG.normal(0, 0.5, logits.shape)).astype(np.float32)
    other[:, 3] = -60  # of no weight in the base
    targets = RNG.integers(4, 12, 40)
    base = (other - np.log(np.exp(other.astype(np.float64)).sum(axis=1, keepdims=True))).astype(np.float32)
    divergence = Divergence()
    for begin in (0, 7):
        divergence.add(
            compare_rows(*(part[begin : 7 if begin == 0 else None] for part in (logits, base, targets)))
        )
    losses, base_losses, kls, deltas, same = [], [], [], [], 0
    for row, base_row, target in zip(logits.astype(float), base.astype(float), targets, strict=True):
        log_probs = row - math.log(sum(math.exp(value) for value in row))
        kls.append(sum(math.exp(p) * (p - q) for p, q in zip(base_row, log_probs, strict=True) if p > -16))
        losses.append(-log_probs[target])
        base_losses.append(-base_row[target])
        deltas.append(math.exp(log_probs[target]) - math.exp(base_row[target]))
        same += int(np.argmax(log_probs) == np.argmax(base_row))
    statistics = divergence.statistics()

    def error(values: list[float]) -> float:
        return float(np.std(values)) / math.sqrt(len(values) - 1)

    wanted = {
        "Mean PPL(Q)": (math.exp(np.mean(losses)), math.exp(np.mean(losses)) * error(losses)),
        "Mean ln(PPL(Q)/PPL(base))": (
            np.mean(losses) - np.mean(base_losses),
            error([a - b for a, b in zip(losses, base_losses, strict=True)]),
        ),
        "Cor(ln(PPL(Q)), ln(PPL(base)))": (100 * np.corrcoef(losses, base_losses)[0, 1], None),
        "Mean KLD": (np.mean(kls), error(kls)),
        "Median KLD": (np.median(kls), None),
        "Maximum KLD": (max(kls), None),
        "95.0% KLD": (np.percentile(kls, 95), None),
        "Mean delta p": (100 * np.mean(deltas), 100 * error(deltas)),
        "25.0% delta p": (100 * np.percentile(deltas, 25), None),
        "RMS delta p": (100 * math.sqrt(np.mean(np.square(deltas))), None),
        "Same top p": (100 * same / 40, 100 * math.sqrt(same / 40 * (1 - same / 40) / 39)),
    }
    assert divergence.count == 40
    for name, (value, uncertainty) in wanted.items():
        assert statistics[name].value == pytest.approx(value, rel=1e-4, abs=1e-6), name
        if uncertainty is not None:
            assert statistics[name].error == pytest.approx(uncertainty, rel=1e-3), name


def test_a_model_beside_itself_and_beside_another(tmp_path: Path) -> None:
    path, other = (tiny_model.write(tmp_path / f"{seed}.gguf", seed=seed) for seed in (5, 6))
    with graphml.load(path, "reference") as model, graphml.load(other, "reference") as second:
        ids = model.encode(TEXT)
        *_, estimate = write_base(model.session(24), ids, 24, tmp_path / "base")
        assert estimate == model.perplexity(TEXT, n_ctx=24)
        base = open_base(tmp_path / "base")
        *_, same = divergences(model.session(24), base)
        *_, differs = divergences(second.session(24), base)
        assert same.statistics()["Mean KLD"].value == pytest.approx(0, abs=1e-4)
        assert same.statistics()["Same top p"].value == 100
        assert same.count == len(base.ids) * n_scored(24)
        assert differs.statistics()["Mean KLD"].value > 0.1
        assert len(list(divergences(model.session(24), base, chunks=2))) == 2


def test_the_command_writes_and_compares(tmp_path: Path) -> None:
    path, other = (tiny_model.write(tmp_path / f"{seed}.gguf", seed=seed) for seed in (5, 6))
    base, text, short = tmp_path / "base", tmp_path / "text", tmp_path / "short"
    text.write_text(TEXT)
    short.write_text("world hello, " * 40)
    common = ["--backend", "reference", "--kl-divergence-base", str(base)]
    graphml_command("perplexity", path, "-f", text, "-c", 24, *common)
    said = json.loads(
        graphml_command("perplexity", other, "-f", text, *common, "--kl-divergence", "--json").stdout
    )
    assert said["statistics"]["Mean KLD"][0] > 0.1
    assert [chunk["after"] for chunk in said["chunks"]] == list(range(1, len(said["chunks"]) + 1))
    assert said["chunks"][-1]["kld"] == said["statistics"]["Mean KLD"]
    lines = graphml_command("perplexity", other, *common, "--kl-divergence").stdout.splitlines()
    assert [line[:31].strip() for line in lines] == list(said["statistics"])
    for arguments, says in (
        (["-f", short], "is of another text"),
        (["-c", 30], "--ctx-size: the base has chunks of 24; got 30"),
    ):
        failed = graphml_command("perplexity", other, *arguments, *common, "--kl-divergence", code=2)
        assert says in failed.stderr
    failed = graphml_command("perplexity", other, "--kl-divergence", "--hellaswag", text, code=2)
    assert "wanted one kind of score; got --hellaswag and --kl-divergence" in failed.stderr
    failed = graphml_command("perplexity", other, "--kl-divergence", "--backend", "reference", code=2)
    assert "wanted --kl-divergence-base FILE" in failed.stderr


def test_a_base_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path, base, text = tiny_model.write(tmp_path / "a.gguf"), tmp_path / "base", tmp_path / "text"
    text.write_text(TEXT)
    base.write_bytes(b"minutes of work")
    common = ["perplexity", path, "-f", text, "-c", 24, "--backend", "reference", "--kl-divergence-base"]
    failed = graphml_command(*common, base, code=2).stderr
    assert "base is there already; --kl-divergence compares with it, --force overwrites it" in failed
    assert base.read_bytes() == b"minutes of work"
    for read in (path, text):
        before = read.read_bytes()
        assert "is read by this command" in graphml_command(*common, read, "--force", code=2).stderr
        assert read.read_bytes() == before
    graphml_command(*common, base, "--force")
    assert base.read_bytes().startswith(b"_logits_")


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    """Of ten positions no uncertainty is known, and so no correlation."""
    path, base, text = tiny_model.write(tmp_path / "a.gguf"), tmp_path / "base", tmp_path / "text"
    text.write_text(TEXT)
    common = ["perplexity", path, "--backend", "reference", "--kl-divergence-base", base]
    graphml_command(*common, "-f", text, "-c", 8, "--chunks", 1)
    said = graphml_command(*common, "--kl-divergence", "--json").stdout
    statistics = json.loads(said, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["statistics"]
    assert statistics["Cor(ln(PPL(Q)), ln(PPL(base)))"] == [None]
