"""Models side by side: none leaves its users, the budget holds, and every wait ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter

import pytest

from graphml.server.engine.model_room import ModelEntry, ModelRoom, leaving
from graphml.server.responses.api_errors import ApiError


class _Models:
    """Opens names as lists, and checks what is open at a time."""

    def __init__(self, sizes: dict[str, int], budget: int, most: int, broken: str = "") -> None:
        self.sizes, self.budget, self.most, self.broken = sizes, budget, most, broken
        self.open: dict[str, list[str]] = {}
        self.users: Counter[str] = Counter()
        self.loads: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.lock = threading.Lock()

    def opened(self, name: str) -> list[str]:
        with self.lock:
            self.loads[name] += 1
            if name == self.broken:
                raise ApiError(400, f"{name}: broken")
            if name in self.open:
                self.wrong.append(f"{name} is opened twice")
            self.open[name] = value = [name]
            if sum(self.sizes[other] for other in self.open) > self.budget:
                self.wrong.append(f"over the budget: {sorted(self.open)}")
            if self.most and len(self.open) > self.most:
                self.wrong.append(f"too many: {sorted(self.open)}")
            return value

    def closed(self, value: list[str]) -> None:
        with self.lock:
            if self.users[value[0]]:
                self.wrong.append(f"{value[0]} is closed while it is used")
            del self.open[value[0]]

    def room(self) -> ModelRoom[list[str]]:
        room: ModelRoom[list[str]] = ModelRoom(
            self.opened, self.closed, self.sizes.__getitem__, self.budget, self.most
        )
        for name in self.sizes:
            room.add(name)
        return room


async def loaded(room: ModelRoom[list[str]], name: str) -> None:
    async with room.use(name):
        pass


@pytest.mark.parametrize("seed", range(30))
def test_random_requests_keep_their_model_and_all_end(seed: int) -> None:
    chance = random.Random(seed)
    sizes = {name: chance.randint(1, 6) for name in "abcde"}
    models = _Models(sizes, chance.randint(6, 14), chance.choice([0, 1, 2, 3]), chance.choice(["", "e"]))

    async def ask(room: ModelRoom[list[str]], name: str, begin: int, steps: int) -> None:
        for _ in range(begin):
            await asyncio.sleep(0)
        try:
            async with room.use(name) as value:
                models.users[name] += 1
                assert value == [name]
                assert models.open[name] is value
                for _ in range(steps):
                    await asyncio.sleep(0.0005)
                models.users[name] -= 1
        except ApiError:
            if name != models.broken:
                raise

    async def unload(room: ModelRoom[list[str]], name: str, begin: int) -> None:
        await asyncio.sleep(begin * 1e-4)
        with contextlib.suppress(ApiError):  # where it is not loaded
            await room.unload(name)

    async def run() -> None:
        room = models.room()
        asks = [
            asyncio.ensure_future(
                ask(room, chance.choice("abcde"), chance.randint(0, 50), chance.randint(0, 5))
            )
            for _ in range(60)
        ]
        asks += [
            asyncio.ensure_future(unload(room, chance.choice("abcde"), chance.randint(0, 99)))
            for _ in range(6)
        ]
        leavers = chance.sample(asks[:60], 5)
        await asyncio.sleep(0.001)
        for task in leavers:
            if not task.done() and not any(models.users.values()):
                task.cancel()
        ends = await asyncio.wait_for(asyncio.gather(*asks, return_exceptions=True), 60)
        assert [end for end in ends if isinstance(end, Exception)] == []
        await asyncio.wait_for(room.close(), 60)
        assert all(entry.users == entry.waiting == 0 for entry in room.entries.values())

    asyncio.run(run())
    assert models.wrong == []
    assert models.open == {}


def test_requests_for_one_model_wait_for_one_load_and_get_its_error() -> None:
    models = _Models({"a": 1, "b": 1}, 9, 0, broken="b")

    async def run() -> None:
        room = models.room()
        await asyncio.gather(*(loaded(room, "a") for _ in range(9)))
        ends = await asyncio.gather(*(loaded(room, "b") for _ in range(9)), return_exceptions=True)
        assert [str(end) for end in ends] == ["b: broken"] * 9
        assert room.entries["b"].error == "b: broken"
        assert room.entries["b"].status == "unloaded"

    asyncio.run(run())
    assert models.loads == {"a": 1, "b": 1}


def test_a_busy_model_leaves_after_its_last_request_and_accepts_no_new_one() -> None:
    models = _Models({"a": 1, "b": 1}, 9, 1)

    async def run() -> None:
        room, order = models.room(), list[str]()

        async def ask(name: str) -> None:
            async with room.use(name):
                order.append(name)

        async with room.use("a"):
            other = asyncio.ensure_future(ask("b"))
            await asyncio.sleep(0.01)
            again = asyncio.ensure_future(ask("a"))
            await asyncio.sleep(0.01)
            assert order == []
            assert room.entries["a"].status == "unloading"
        await asyncio.wait_for(asyncio.gather(other, again), 60)
        assert order == ["b", "a"]

    asyncio.run(run())
    assert models.wrong == []


def test_what_cannot_be_meant_is_refused() -> None:
    models = _Models({"a": 1, "big": 10}, 9, 0)

    async def refused(room: ModelRoom[list[str]], name: str, autoload: bool = True) -> tuple[int, str]:
        with pytest.raises(ApiError) as caught:
            async with room.use(name, autoload):
                pass
        return caught.value.status, caught.value.message

    async def run() -> None:
        room = models.room()
        assert await refused(room, "../a") == (400, "model '../a' not found")
        assert await refused(room, "a", autoload=False) == (400, "model is not loaded")
        assert await refused(room, "big") == (400, "model 'big' takes 10 bytes; all models may take 9")
        await room.close()
        assert (await refused(room, "a"))[0] == 503

    asyncio.run(run())


def test_the_least_recently_used_idle_model_leaves_first() -> None:
    held = [ModelEntry[list[str]](name, size, used=used, users=users) for name, size, used, users in (
        ("old busy", 4, 1, 1), ("old", 2, 2, 0), ("new", 2, 3, 0),
    )]  # fmt: skip

    def names(size: int, budget: int | None, most: int) -> list[str] | None:
        leavers = leaving(held, size, budget, most)
        return None if leavers is None else [entry.name for entry in leavers]

    assert names(2, 10, 0) == []
    assert names(2, 8, 0) == ["old"]
    assert names(4, 8, 0) == ["old", "new"]
    assert names(8, 8, 0) == ["old", "new", "old busy"]
    assert names(9, 8, 0) is None
    assert names(1, None, 3) == ["old"]
    assert names(1, None, 4) == []


def test_an_unload_of_a_model_whose_load_fails_ends_and_it_may_be_loaded_again() -> None:
    models = _Models({"a": 1}, 9, 0, broken="a")

    async def run() -> None:
        room = models.room()
        first = asyncio.ensure_future(loaded(room, "a"))
        await asyncio.sleep(0)
        last = asyncio.ensure_future(room.unload("a"))
        assert str((await asyncio.gather(first, last, return_exceptions=True))[0]) == "a: broken"
        models.broken = ""
        async with room.use("a"):
            assert room.entries["a"].status == "loaded"
            assert room.entries["a"].error is None

    asyncio.run(asyncio.wait_for(run(), 60))
    assert models.wrong == []


def test_a_request_between_a_failed_load_and_its_unload_waits_for_the_unload() -> None:
    models = _Models({"a": 1}, 9, 0, broken="a")

    async def run() -> None:
        room = models.room()
        seen: list[str] = []

        async def again() -> None:
            with contextlib.suppress(ApiError):
                await loaded(room, "a")
            seen.append(room.entries["a"].status)
            models.broken = ""
            async with room.use("a"):
                await asyncio.sleep(0.01)
                seen.append(room.entries["a"].status)

        asking = asyncio.ensure_future(again())
        await asyncio.sleep(0)
        last = asyncio.ensure_future(room.unload("a"))
        await asyncio.gather(asking, last)
        assert seen[1] == "loaded"

    asyncio.run(asyncio.wait_for(run(), 60))
    assert models.wrong == []
