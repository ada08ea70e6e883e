"""`/v1/activations` of a running server: the values are a session's, whatever the server does besides."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from safetensors import numpy as safetensors

import graphml
from graphml.api.request_probes import RequestProbes, TooManyKindsError
from graphml.server.options.server_options import RequestLimits, ServerOptions
from tests.server.running_server import Running, running

PATH, PROMPT, NAME = "/v1/activations", "Once upon a time there was a girl", "layers.2.ffn_residual"


@pytest.fixture(scope="module")
def shown(stories: graphml.Model) -> Iterator[Running]:
    limits = RequestLimits(activation_bytes=40_000)
    with running(ServerOptions(parallel=3, n_ctx=128, activations=True, limits=limits), stories) as server:
        yield server


def answered(server: Running, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of an answer, and what is said of them."""
    response = server.post(PATH, {"prompt": PROMPT, "values": NAME, **body})
    assert response.status_code == 200, response.content[:300]
    assert response.headers["content-type"] == "application/x-safetensors"
    size = int.from_bytes(response.content[:8], "little")
    about = json.loads(response.content[8 : 8 + size])["__metadata__"]
    return safetensors.load(response.content), {key: json.loads(text) for key, text in about.items()}


def test_values_of_a_prompt_are_a_sessions(shown: Running, stories: graphml.Model) -> None:
    ids = stories.encode(PROMPT)
    arrays, about = answered(shown, values=["layers.*.attention", NAME], temperature=0)
    with stories.session(64, capture=["layers.*.attention", NAME]) as session:
        session.eval(ids, all_logits=True)
        assert sorted(arrays) == sorted(session.captured)
        for name, rows in session.captured.items():
            np.testing.assert_allclose(arrays[name], rows, rtol=1e-4, atol=1e-4)
    assert about == {
        "model": "stories260K.bin", "tokens": ids, "n_prompt": len(ids), "positions": None, "text": "",
        "stop_reason": "length",
    }  # fmt: skip


def test_generated_tokens_positions_and_npy(shown: Running, stories: graphml.Model) -> None:
    ids = stories.encode(PROMPT)
    whole, about = answered(shown, max_tokens=4, temperature=0)
    assert whole[NAME].shape == (len(ids) + 3, 64)
    assert len(about["tokens"]) == len(ids) + 4
    some, about = answered(shown, max_tokens=4, temperature=0, positions=[-1, 0, len(ids)], prompt=ids)
    assert about["positions"] == [0, len(ids) - 1, len(ids)]
    np.testing.assert_array_equal(some[NAME], whole[NAME][about["positions"]])
    body = {"prompt": PROMPT, "values": NAME, "max_tokens": 4, "temperature": 0}
    for response in (
        shown.post(PATH, {**body, "format": "npy"}),
        shown.post(PATH, body, headers={"accept": "application/x-npy"}),
    ):
        assert response.headers["content-type"] == "application/x-npy"
        np.testing.assert_array_equal(np.load(io.BytesIO(response.content)), whole[NAME])


def test_messages(shown: Running) -> None:
    arrays, about = answered(shown, prompt=None, messages=[{"role": "user", "content": "Hi"}], positions=[-1])
    assert arrays[NAME].shape == (1, 64)
    assert about["n_prompt"] > 2


def test_patches_and_control_vectors(shown: Running, stories: graphml.Model) -> None:
    """As lists and as files; the next layer's input is what was patched in."""
    ids, rows = stories.encode(PROMPT), np.random.default_rng(0).standard_normal((2, 64), np.float32)
    plain, _ = answered(shown)
    for sent in (rows.tolist(), base64.b64encode(safetensors.save({"any": rows})).decode()):
        arrays, _ = answered(shown, patches=[{"value": NAME, "rows": sent, "positions": [1, -1]}])
        wanted = plain[NAME].copy()
        wanted[[1, len(ids) - 1]] = rows
        np.testing.assert_array_equal(arrays[NAME], wanted)
    added, _ = answered(shown, patches=[{"value": NAME, "rows": rows[0].tolist(), "add": True}])
    np.testing.assert_allclose(added[NAME], plain[NAME] + rows[0], rtol=1e-6)
    vectors = [{"layer": 2, "vector": rows[0].tolist(), "scale": 8}]
    steered, about = answered(shown, control_vectors=vectors, max_tokens=3, temperature=0)
    np.testing.assert_allclose(steered[NAME][: len(ids)], plain[NAME] + 8 * rows[0], rtol=1e-5)
    with stories.session(64, patch={NAME: lambda x: x + 8 * rows[0]}) as session:
        params = graphml.SamplingParams(temperature=0)
        assert about["tokens"][len(ids) :] == [token.id for token in session.generate(ids, params, 3)]


def test_other_requests_are_as_they_were(shown: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    alone = shown.post("/v1/completions", body).json()["choices"][0]["text"]
    patches = [{"value": "layers.*.attention", "rows": [[0.0] * 8] * 8}]
    with ThreadPoolExecutor(6) as pool:
        beside = [pool.submit(shown.post, "/v1/completions", body) for _ in range(3)]
        values = [pool.submit(answered, shown, max_tokens=8, patches=patches) for _ in range(2)]
        values += [pool.submit(answered, shown, max_tokens=8)]
        assert [one.result().json()["choices"][0]["text"] for one in beside] == [alone] * 3
        first, second, other = [one.result()[0][NAME] for one in values]
    np.testing.assert_array_equal(first[:9], second[:9])
    assert np.abs(first[:9] - other[:9]).max() > 0.1
    assert shown.at_rest()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"values": "layers.0.atention"}, "mean 'layers.0.attention'"),
    "patched name": ({"patches": [{"value": "layers.0.atention", "rows": [1]}]}, "mean 'layers.0.attention'"),
    "none": ({"values": []}, "Field 'values': wanted a name"),
    "missing": ({"values": None}, "Field 'values': it is missing"),
    "too large": (
        {"values": "*"},
        r"'values': \d+ values of \d+ tokens are [\d,]+ bytes; at most 40,000",
    ),
    "long": (
        {"max_tokens": 10**6, "values": ["layers.0.q", "layers.1.q"]},
        "2 values of 128 tokens are 65,536 bytes; at most 40,000",
    ),
    "several": ({"n": 2}, "n: wanted 1"),
    "prompts": ({"prompt": ["a", "b"]}, "wanted one prompt, got 2"),
    "both": ({"messages": [{"role": "user", "content": "Hi"}]}, "and not both"),
    "stream": ({"stream": True}, "Field 'stream'"),
    "format": ({"format": "pickle"}, "wanted one of npy, safetensors"),
    "npy": ({"values": ["layers.0.q", "layers.1.q"], "format": "npy"}, "npy is for one value, got 2"),
    "position behind": ({"positions": [99]}, r"positions: wanted numbers below \d+"),
    "position": ({"positions": [-100]}, "positions.: wanted -11 or more, for a prompt of 11; got -100"),
    "pickle": (
        {"patches": [{"value": NAME, "rows": base64.b64encode(b"\x80\x04N.").decode()}]},
        "wanted a safetensors file with one tensor",
    ),
    "base64": ({"patches": [{"value": NAME, "rows": "!"}]}, "wanted a safetensors file with one tensor"),
    "ragged": ({"patches": [{"value": NAME, "rows": [[1], [1, 2]]}]}, "wanted numbers in lists of one shape"),
    "shape": ({"patches": [{"value": NAME, "rows": [1]}]}, r"wanted rows \[64\]; got \[1\]"),
    "huge": ({"patches": [{"value": NAME, "rows": [1e300] * 64}]}, "wanted rows of finite numbers"),
    "no logits": (
        {"patches": [{"value": "layers.4.attention", "rows": [[3e38] * 8] * 8}]},
        "the logits behind them are no numbers",
    ),
    "twice": (
        {
            "patches": [{"value": NAME, "rows": [0] * 64}],
            "control_vectors": [{"layer": 2, "vector": [0] * 64}],
        },
        f"one patch or control vector of {NAME}, got two",
    ),
    "layer": ({"control_vectors": [{"layer": 9, "vector": [0] * 64}]}, "wanted a layer 9 that gives"),
    "drafts": ({"speculative.type": "ngram"}, "takes no drafts"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told(shown: Running, case: str) -> None:
    more, message = WRONG[case]
    response = shown.post(PATH, {"prompt": PROMPT, "values": NAME, **more})
    assert response.status_code == 400, response.content[:300]
    assert re.search(message, response.json()["error"]["message"]), response.text


def test_too_many_sets_at_a_time_is_429(shown: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise TooManyKindsError("capture: wait until one has ended")

    monkeypatch.setattr(RequestProbes, "prepare", refuse)
    response = shown.post(PATH, {"prompt": PROMPT, "values": NAME})
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert "wait until" in response.json()["error"]["message"]


def test_it_is_off_unless_the_server_was_started_with_it(server: Running) -> None:
    response = server.post(PATH, {"prompt": PROMPT, "values": NAME})
    assert response.status_code == 501
    assert "--activations" in response.json()["error"]["message"]


def test_the_openapi_document_has_its_fields(server: Running) -> None:
    document = server.http.get("/openapi.json").json()
    operation = document["paths"][PATH]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Activations")
    fields = document["components"]["schemas"]["Activations"]["properties"]
    assert {"values", "positions", "patches", "control_vectors", "format", "messages", "prompt"} <= set(
        fields
    )
