"""ollama's protocol, by the JSON that its documentation has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import graphml
from graphml.server.options.server_options import ServerOptions
from tests import tiny_model
from tests.server.clients.wished_answers import Wishes
from tests.server.running_server import Running, running

OPTIONS = {"temperature": 0, "num_predict": 6, "num_ctx": 512}
ASKED: dict[str, Any] = {
    "model": "any",
    "messages": [{"role": "user", "content": "Once"}],
    "options": OPTIONS,
}
FIGURES = {
    "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count",
    "eval_duration",
}  # fmt: skip
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "of a city", "parameters": {
        "type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def wished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wishes]:
    """A server of a model that says what a test wishes, and whose template has thoughts."""
    template = tiny_model.CHATML + "{# <think></think> #}"
    path = tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_ctx=4096, template=template)
    with graphml.load(path, "cpu", threads=1, n_batch=256) as model:
        wishes = Wishes(model)
        params = graphml.SamplingParams(function=wishes)
        with running(ServerOptions(parallel=1, n_ctx=4096, params=params), model) as found:
            wishes.server = found
            yield wishes


def lines(server: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a stream."""
    with server.http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in response.iter_lines()]


def test_a_chat_is_a_stream_of_json_lines_by_default(server: Running) -> None:
    *parts, last = lines(server, "/api/chat", ASKED)
    whole = server.post("/api/chat", {**ASKED, "stream": False}).json()
    assert "".join(part["message"]["content"] for part in parts) == whole["message"]["content"] != ""
    assert not any(part["done"] for part in parts)
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 6)
    assert last["message"] == {"role": "assistant", "content": ""}
    assert last.keys() == whole.keys()
    assert last.keys() > FIGURES
    assert last["prompt_eval_duration"] + last["eval_duration"] <= last["total_duration"]
    chat = {"messages": ASKED["messages"], "temperature": 0, "max_tokens": 6}
    usual = server.post("/v1/chat/completions", chat).json()
    assert whole["message"]["content"] == usual["choices"][0]["message"]["content"]
    assert whole["prompt_eval_count"] == usual["usage"]["prompt_tokens"]
    assert whole["model"] == "stories"
    assert whole["created_at"].endswith("Z")
    assert server.at_rest()


def test_a_prompt_is_a_users_message_unless_it_is_raw(server: Running) -> None:
    asked = {"model": "any", "prompt": "Once", "options": OPTIONS}
    found = server.post("/api/generate", {**asked, "stream": False}).json()
    told = {
        **asked,
        "system": "Tell a tale.",
        "stream": False,
    }  # which nothing but a template has a place for
    assert server.post("/api/generate", told).json()["prompt_eval_count"] > found["prompt_eval_count"]
    raw = lines(server, "/api/generate", {**asked, "raw": True})
    plain = {"prompt": "Once", "temperature": 0, "n_predict": 6}
    assert "".join(part["response"] for part in raw) == server.post("/completion", plain).json()["content"]
    assert raw[-1].keys() > FIGURES
    assert found["response"] == "".join(part["response"] for part in raw)  # the model has no template


def test_a_prompt_is_rendered_where_the_model_has_a_template(wished: Wishes) -> None:
    asked = {"model": "any", "prompt": "Once", "stream": False, "options": {"num_predict": 1}}
    n_prompt = wished.server.post("/api/generate", asked).json()["prompt_eval_count"]
    assert n_prompt > len("Once") + 1  # tokens of the text are letters, at most, behind a begin token


def test_a_suffix_has_the_middle_filled(coder: Running) -> None:
    asked = {"prompt": "ab", "suffix": "c", "stream": False, "options": {"temperature": 0, "num_predict": 4}}
    wanted = {"input_prefix": "ab", "input_suffix": "c", "temperature": 0, "n_predict": 4}
    found = coder.post("/api/generate", asked).json()
    assert found["response"] == coder.post("/infill", wanted).json()["content"]
    assert "insert" in coder.post("/api/show", {"model": "any"}).json()["capabilities"]


def test_a_request_of_nothing_loads_the_model(server: Running) -> None:
    chat = server.post("/api/chat", {"model": "any", "messages": []}).json()
    assert (chat["done"], chat["done_reason"], chat["message"]["content"]) == (True, "load", "")
    text = server.post("/api/generate", {"model": "any"}).json()
    assert (text["done_reason"], text["response"]) == ("load", "")


def test_options_are_the_samplers(server: Running) -> None:
    def text(**options: Any) -> str:
        body = {**ASKED, "options": {**OPTIONS, **options}, "stream": False}
        return str(server.post("/api/chat", body).json()["message"]["content"])

    hot = {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "num_predict": 12}
    assert text(**hot, seed=5) == text(**hot, seed=5)
    assert len({text(**hot, seed=number) for number in range(4)}) > 1
    assert text(**hot, seed=1, min_p=1.0) == text(num_predict=12)
    begun = text()
    assert text(stop=[begun[3:]]) == begun[:3]
    assert text(num_predict=-2, num_thread=2, penalize_newline=True, stop=begun[2]) == begun[:2]


def test_a_format_holds_the_answer(server: Running) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"enum": [7]}}}
    asked = {**ASKED, "format": {**schema, "additionalProperties": False}, "stream": False}
    found = server.post("/api/chat", {**asked, "options": {"temperature": 0, "num_predict": 60}}).json()
    assert json.loads(found["message"]["content"]) == {"n": 7}
    assert found["done_reason"] == "stop"
    limited = {"format": "json", "stream": False, "options": {"num_predict": 1}}
    assert server.post("/api/generate", {"prompt": "A", **limited}).json()["response"].strip() == "{"


def test_tools_are_called_and_their_results_are_read(wished: Wishes) -> None:
    assert wished.server
    wished.forget()
    wished.say(CALL, "Sunny.")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "The weather in Rome?"}]
    asked = {"messages": messages, "tools": [WEATHER]}
    *parts, last = lines(wished.server, "/api/chat", asked)
    (call,) = [call for part in parts for call in part["message"].get("tool_calls", ())]
    assert call["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert (last["done_reason"], "tool_calls" in last["message"]) == ("stop", False)
    answered = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": call["function"]}]},
        {"role": "tool", "tool_name": "weather", "content": "sun"},
    ]
    found = wished.server.post(
        "/api/chat", {**asked, "messages": messages + answered, "stream": False}
    ).json()
    assert found["message"] == {"role": "assistant", "content": "Sunny."}
    assert "sun" in wished.prompts[-1]


def test_thoughts_are_told_apart(wished: Wishes) -> None:
    assert wished.server
    wished.forget()
    wished.say("<think>\nHm.\n</think>\n\nYes.")
    asked = {"messages": [{"role": "user", "content": "So?"}], "think": True}
    parts = lines(wished.server, "/api/chat", asked)
    assert "".join(part["message"].get("thinking", "") for part in parts).strip() == "Hm."
    assert "".join(part["message"]["content"] for part in parts).strip() == "Yes."
    found = wished.server.post("/api/generate", {"prompt": "So?", "stream": False}).json()
    assert (found["thinking"].strip(), found["response"].strip()) == ("Hm.", "Yes.")


def test_probabilities_are_told_with_their_tokens(server: Running) -> None:
    body = {**ASKED, "logprobs": True, "top_logprobs": 2}
    scored = [entry for part in lines(server, "/api/chat", body) for entry in part.get("logprobs", ())]
    whole = server.post("/api/chat", {**body, "stream": False}).json()
    assert len(scored) == len(whole["logprobs"]) == 6
    assert [entry["token"] for entry in scored] == [entry["top_logprobs"][0]["token"] for entry in scored]


def test_embeddings_have_length_1_and_long_texts_are_cut(server: Running) -> None:
    found = server.post("/api/embed", {"model": "any", "input": ["Once", "a time"]}).json()
    assert [round(sum(x * x for x in row), 5) for row in found["embeddings"]] == [1.0, 1.0]
    wanted = server.post("/v1/embeddings", {"input": ["Once", "a time"]}).json()
    assert found["embeddings"][1] == pytest.approx(wanted["data"][1]["embedding"], abs=1e-6)
    assert found["prompt_eval_count"] == wanted["usage"]["prompt_tokens"]
    long = "a time " * 60
    cut = server.post("/api/embed", {"input": long, "dimensions": 8}).json()
    assert cut["prompt_eval_count"] == 64  # the model's n_batch
    assert len(cut["embeddings"][0]) == 8
    for path, more in (("/api/embed", {"truncate": False}), ("/v1/embeddings", {}), ("/embedding", {})):
        refused = server.post(path, {"input": ["Once", long], **more})
        assert refused.status_code == 400
        assert "input[1] (" in str(refused.json()["error"])
        assert "at most 64 are" in str(refused.json()["error"])


def test_a_text_is_embedded_by_the_older_path(server: Running) -> None:
    (row,) = server.post("/api/embed", {"input": "Once"}).json()["embeddings"]
    assert server.post("/api/embeddings", {"model": "any", "prompt": "Once"}).json() == {"embedding": row}
    assert server.post("/api/embeddings", {"model": "any"}).status_code == 400


def test_2048_texts_are_embedded_by_one_request(server: Running) -> None:
    texts = ["Once", "a time"] * 1024
    rows = server.post("/v1/embeddings", {"input": texts}).json()["data"]
    assert [row["index"] for row in rows] == list(range(2048))
    assert rows[2047]["embedding"] == pytest.approx(rows[1]["embedding"], abs=1e-6)
    refused = server.post("/api/embed", {"input": [*texts, "Once"]})
    assert refused.status_code == 400
    assert "at most 2048" in refused.json()["error"]


def test_the_model_is_listed_and_shown(server: Running) -> None:
    assert tuple(map(int, server.http.get("/api/version").json()["version"].split("."))) >= (0, 6, 4)
    (listed,) = server.http.get("/api/tags").json()["models"]
    assert listed["name"] == listed["model"] == "stories"
    assert len(listed["digest"]) == 64
    assert listed["details"]["family"] == "llama"
    shown = server.post("/api/show", {"model": "stories"}).json()
    assert shown["details"] == listed["details"]
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["model_info"]["llama.context_length"] > 0
    assert shown["model_info"]["general.parameter_count"] > 200_000
    assert not any(isinstance(value, list) for value in shown["model_info"].values())
    assert shown["capabilities"] == ["completion", "tools"]
    assert "num_ctx 512" in shown["parameters"]


def test_the_model_that_is_served_is_pulled_at_once(server: Running) -> None:
    for name in ("stories", "stories:latest", "stories.gguf"):
        assert lines(server, "/api/pull", {"model": name})[-1] == {"status": "success"}
    assert server.post("/api/pull", {"name": "stories", "stream": False}).json() == {"status": "success"}


def test_an_answer_calls_the_model_as_it_was_asked_for(server: Running) -> None:
    body = {"messages": ASKED["messages"], "max_tokens": 1, "prompt": "Once", "input": "Once"}
    names = [("stories.gguf", "stories.gguf"), ("stories:latest", "stories:latest"), ("other", "stories")]
    for asked, wanted in (*names, (None, "stories")):
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings",
                     "/v1/messages", "/api/generate", "/api/embed"):  # fmt: skip
            sent = {**body, "model": asked, "stream": False}
            if path == "/v1/responses":
                del sent["prompt"]
            answer = server.post(path, sent).json()
            assert answer.get("model") == wanted, (path, answer)
    streamed = lines(server, "/api/chat", {**ASKED, "model": "stories.gguf"})
    assert {line["model"] for line in streamed} == {"stories.gguf"}


def test_a_models_thoughts_are_a_capability(wished: Wishes) -> None:
    assert wished.server
    assert "thinking" in wished.server.post("/api/show", {"model": "any"}).json()["capabilities"]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "a", "images": ["aa=="]}]},
            r"messages[0].images",
        ),
        ("/api/generate", {"prompt": "a", "images": ["aa=="]}, "no images"),
        ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"prompt": "a", "context": [1, 2]}, "/api/chat"),
        ("/api/chat", {"options": {"num_ctx": 4096}}, "at most 512"),
        ("/api/chat", {"options": {"temperature": "hot"}}, "temperature"),
        ("/api/chat", {"format": "yaml"}, "wanted json or a schema"),
        ("/api/chat", {"think": True}, "does not think"),
        ("/api/chat", {"messages": [{"role": "cat", "content": "a"}]}, "messages[0].role"),
        ("/api/embed", {}, "input"),
        ("/api/pull", {"model": "any"}, "'any' is not served here, which is stories"),
        ("/api/pul", {"model": "any"}, "File Not Found"),
    ],
)
def test_what_cannot_be_is_refused_in_ollamas_form(
    server: Running, path: str, fields: dict[str, Any], words: str
) -> None:
    messages = {"messages": ASKED["messages"]} if path == "/api/chat" else {}
    refused = server.post(path, {**messages, **fields})
    assert refused.status_code in (400, 404)
    assert words in refused.json()["error"]
