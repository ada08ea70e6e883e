"""What one key cannot see, change or use up of another's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import httpx2
import pytest

import graphml
from graphml.server.engine.stored_responses import StoredResponse, StoredResponses
from graphml.server.options.api_keys import ApiKeys, FileKey
from graphml.server.options.key_limits import KeyLimits
from graphml.server.options.server_options import ServerOptions
from graphml.server.responses import resumable_streams
from graphml.server.responses.api_errors import ApiError
from graphml.server.responses.resumable_streams import ResumableStreams
from tests.server.running_server import Running, running

ANN, BOB, ROOT = ({"X-Api-Key": one} for one in ("ann", "bob", "root"))
LONG = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stop": ["Ann's secret"], "id_slot": 0}


@pytest.fixture
def shared(stories: graphml.Model, tmp_path: Path) -> Iterator[Running]:
    keys = tuple(FileKey(one, line, KeyLimits()) for line, one in enumerate(("ann", "bob"), 1))
    options = ServerOptions(
        parallel=2, n_ctx=256, slot_save_path=tmp_path, api_keys=("root",), file_keys=keys, context_shift=True
    )
    with running(options, stories) as found:
        yield found


def test_slots_show_what_was_asked_for_to_its_key_and_to_admins(shared: Running) -> None:
    with shared.http.stream("POST", "/completion", json={**LONG, "stream": True}, headers=ANN) as one:
        chunks = one.iter_bytes()  # closes the stream where it is dropped
        next(chunks)
        seen = {}
        for name, headers in (("ann", ANN), ("bob", BOB), ("root", ROOT)):
            slots = shared.http.get("/slots", headers=headers).json()
            (seen[name],) = [slot for slot in slots if slot["is_processing"]]
    assert seen["ann"]["params"]["stop"] == seen["root"]["params"]["stop"] == ["Ann's secret"]
    assert "secret" not in str(seen["bob"])
    assert shared.at_rest()


def test_a_slot_is_saved_and_erased_by_the_key_that_left_it(shared: Running) -> None:
    asked = {"prompt": "Once upon a time there was a girl. " * 4, "n_predict": 2, "id_slot": 0}

    def counted(action: str, headers: dict[str, str]) -> int:
        reply = shared.post(f"/slots/0?action={action}", {"filename": "a.bin"}, headers=headers).json()
        found: int = reply["n_saved" if action == "save" else "n_erased"]
        return found

    shared.post("/completion", asked, headers=ANN)
    assert counted("save", BOB) == counted("erase", BOB) == 0
    assert counted("save", ANN) > 0
    assert counted("save", ROOT) > 0
    assert counted("erase", ANN) > 0


def test_files_of_slots_are_of_their_key_and_admins_share_theirs(shared: Running, tmp_path: Path) -> None:
    """Under one name each key has a file of its own, which the same key finds in another process."""

    def done(action: str, headers: dict[str, str]) -> httpx2.Response:
        return shared.post(f"/slots/0?action={action}", {"filename": "a.bin"}, headers=headers)

    asked = {"prompt": "Once upon a time there was a girl. " * 4, "n_predict": 2, "id_slot": 0}
    for headers in (ANN, ROOT):
        shared.post("/completion", asked, headers=headers)
        assert done("save", headers).json()["n_saved"] > 0
    assert done("restore", BOB).status_code == 400  # neither Ann's nor the admin's
    (of_all,), (of_ann,) = tmp_path.glob("*.bin"), tmp_path.glob(".keys/*/a.bin")
    was = of_all.read_bytes(), of_ann.read_bytes()
    assert done("save", BOB).json()["n_saved"] == 0
    assert (of_all.read_bytes(), of_ann.read_bytes()) == was
    assert done("restore", ANN).json()["n_read"] == len(was[1])
    assert of_ann.parent.stat().st_mode & 0o077 == 0
    keys = ApiKeys(["ann"])  # as another process has them, under other names
    assert keys.folder_of(keys.owner_of("ann")) == of_ann.parent.name
    assert keys.folder_of("an owner whose key is gone") not in ("", of_ann.parent.name)


def test_a_folder_that_cannot_be_made_is_told_without_its_path(shared: Running, tmp_path: Path) -> None:
    (tmp_path / ".keys").write_text("a file")
    refused = shared.post("/slots/0?action=save", {"filename": "a.bin"}, headers=ANN)
    assert refused.status_code == 400
    assert "a.bin: cannot be written" in refused.text
    assert str(tmp_path) not in refused.text


def test_adapters_of_all_are_set_by_admins(shared: Running) -> None:
    assert shared.post("/lora-adapters", [], headers=BOB).status_code == 403
    assert shared.post("/lora-adapters", [], headers=ROOT).status_code == 200


def test_a_key_that_stores_much_loses_its_own_responses_first() -> None:
    def put(kept: StoredResponses, key: str, id: str, n_chars: int = 0) -> None:
        kept.put(key, StoredResponse({"id": id}, [], [{"text": "x" * n_chars}]))

    def has(kept: StoredResponses, key: str, id: str) -> bool:
        with contextlib.suppress(ApiError):
            return kept.get(key, id) is not None
        return False

    few, small = StoredResponses(4, 1 << 20), StoredResponses(100, 2000)
    for kept in (few, small):
        put(kept, "ann", "first")
        for number in range(20):
            put(kept, "bob", f"{number}", 300)
        assert has(kept, "ann", "first")
        assert has(kept, "bob", "19")
        assert not has(kept, "bob", "0")
    put(few, "ann", "large", 400)
    limited = StoredResponses(4, 1 << 20, 300)
    put(limited, "ann", "large", 400)
    assert has(few, "ann", "large")
    assert not has(limited, "ann", "large")


def test_a_key_leaves_room_for_others_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_streams, "MOST", 4)

    async def scene() -> None:
        streams, goes_on = ResumableStreams(), asyncio.Event()

        async def events(waits: bool) -> AsyncGenerator[bytes, None]:
            yield b"data: 1\n\n"
            if waits:
                await goes_on.wait()

        def begin(key: str, name: str, waits: bool) -> None:
            streams.begin((key, name), events(waits), lambda: None, False)

        for name in ("a", "b"):
            begin("bob", name, True)
        with pytest.raises(ApiError, match="this key has 2 streams"):
            begin("bob", "c", True)
        begin("ann", "a", False)
        await asyncio.sleep(0.01)
        goes_on.set()
        await asyncio.sleep(0.01)
        for name in "cdefg":  # they end, and push out Bob's own
            begin("bob", name, False)
            await asyncio.sleep(0.01)
        assert streams.find(("ann", "a")).ended is not None

    asyncio.run(scene())


@pytest.mark.parametrize("shares", [False, True])
def test_prompts_of_others_are_not_told_by_what_is_found(stories: graphml.Model, shares: bool) -> None:
    """As with two keys of two people; a flag shares knowingly."""
    options = ServerOptions(parallel=2, n_ctx=256, api_keys=("ann", "bob"), share_prefixes=shares)
    asked = {"prompt": "My number is 4711, and nobody knows it. " * 4, "n_predict": 1}
    with running(options, stories) as server:
        cached = [
            server.post("/completion", asked, headers=headers).json()["timings"]["cache_n"] > 0
            for headers in (ANN, BOB, ANN, BOB)
        ]
    assert cached == [False, shares, True, True]
