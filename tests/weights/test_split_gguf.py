import numpy as np
import pytest

from graphml.errors import WeightsError
from graphml.weights import open_model
from tests.weights import gguf_bytes as g


def part(number, count, names, total=None, extra=()):
    keys = [
        ("split.no", g.scalar(g.U16, "H", number)),
        ("split.count", g.scalar(g.U16, "H", count)),
        *([] if total is None else [("split.tensors.count", g.scalar(g.I32, "i", total))]),
        *extra,
    ]
    entries = [g.tensor(name, [8], 0, 32 * index) for index, name in enumerate(names)]
    values = [np.full(8, ord(name), "<f4").tobytes() for name in names]
    return g.file(keys, entries, b"".join(values))


@pytest.fixture
def parts(tmp_path):
    names = ["ab", "c", "de"]
    extra = [("general.architecture", g.text("llama"))]
    for number, some in enumerate(names):
        path = tmp_path / f"tiny model-{number + 1:05}-of-00003.gguf"
        path.write_bytes(part(number, 3, some, 5, extra if number == 0 else []))
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_part_opens_all(parts, which):
    with open_model(parts[which]) as model:
        assert list(model.tensors) == ["a", "b", "c", "d", "e"]
        assert [tensor.numpy()[3] for tensor in model.tensors.values()] == [ord(name) for name in "abcde"]
        assert model.metadata.text("general.architecture") == "llama"
        assert model.paths == tuple(parts)
        assert model.path == parts[which]
        assert model.n_bytes == sum(path.stat().st_size for path in parts)
        assert model.metadata.unread() == []


def test_names_in_capitals_are_parts_too(parts):
    capitals = [path.rename(path.with_name(path.name.upper())) for path in parts]
    with open_model(capitals[1]) as model:
        assert model.paths == tuple(capitals)
    capitals[2].unlink()
    with pytest.raises(WeightsError, match="part 3 of 3 is missing.*MODEL-00003-OF-00003.GGUF"):  # noqa: RUF043
        open_model(capitals[0])


@pytest.mark.parametrize(("opened", "missing"), [(0, 1), (0, 2), (2, 0)])
def test_a_missing_part_is_named(parts, opened, missing):
    parts[missing].unlink()
    with pytest.raises(WeightsError, match=rf"part {missing + 1} of 3 is missing.*{parts[missing].name}"):
        open_model(parts[opened])


def test_parts_of_different_models_are_refused(parts):
    parts[1].write_bytes(part(2, 3, "c", 5))
    with pytest.raises(WeightsError, match=r"00002-of-00003.*'split.no': wanted part 2 of 3, got 3 of 3"):
        open_model(parts[0])
    parts[1].write_bytes(part(1, 3, "a", 5))
    with pytest.raises(WeightsError, match=r"tensor 'a' is also in another part"):
        open_model(parts[0])
    parts[1].write_bytes(part(1, 3, "xyz", 5))
    with pytest.raises(WeightsError, match=r"'split.tensors.count': wanted 5 tensors, the parts hold 7"):
        open_model(parts[0])


def test_a_damaged_part_is_named(parts):
    parts[1].write_bytes(parts[1].read_bytes()[:-1])
    with pytest.raises(WeightsError, match=r"00002-of-00003.*tensor 'c'.*truncated"):
        open_model(parts[0])
    parts[1].write_bytes(b"")
    with pytest.raises(WeightsError, match=r"00002-of-00003.*empty"):
        open_model(parts[0])


def test_names_that_do_not_say_the_part_are_refused(parts):
    renamed = parts[1].with_name("renamed.gguf")
    parts[1].rename(renamed)
    with pytest.raises(WeightsError, match=r"part 2 of 3.*model-00002-of-00003.gguf"):
        open_model(renamed)


@pytest.mark.parametrize(("number", "count"), [(3, 3), (9, 1)])
def test_impossible_numbers_are_refused(tmp_path, number, count):
    path = tmp_path / "m-00001-of-00003.gguf"
    path.write_bytes(part(number, count, "a"))
    with pytest.raises(WeightsError, match=r"'split.no'"):
        open_model(path)


def test_a_split_count_of_one_or_none_is_a_whole_file(tmp_path):
    for count in (0, 1):
        path = tmp_path / "merged.gguf"
        path.write_bytes(part(0, count, "ab", 2))
        assert list(open_model(path).tensors) == ["a", "b"]
