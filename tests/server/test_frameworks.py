"""LangChain and LlamaIndex as clients, where they are installed: plain and streamed chats, embeddings."""

from __future__ import annotations

import pytest

from tests.server.running_server import Running


def test_langchain_chats_streams_and_embeds(server: Running) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="LangChain is not installed")
    how = {"base_url": f"{server.address}/v1", "api_key": "none", "model": "any"}
    chat = langchain.ChatOpenAI(**how, max_tokens=6, temperature=0)
    whole = chat.invoke("Once upon a time")
    assert whole.content
    assert whole.usage_metadata["output_tokens"] == 6
    assert "".join(one.content for one in chat.stream("Once upon a time")) == whole.content
    embeddings = langchain.OpenAIEmbeddings(**how, check_embedding_ctx_length=False)
    one, other = embeddings.embed_documents(["a dog", "a house"])
    assert len(one) == len(other) == 64
    assert one != other


def test_llama_index_completes_chats_and_streams(server: Running) -> None:
    like = pytest.importorskip("llama_index.llms.openai_like", reason="LlamaIndex is not installed")
    llms = pytest.importorskip("llama_index.core.llms")
    how = {"api_base": f"{server.address}/v1", "api_key": "none", "model": "any", "is_chat_model": True}
    llm = like.OpenAILike(**how, max_tokens=6, temperature=0)
    messages = [llms.ChatMessage(role="user", content="Once upon a time")]
    whole = llm.chat(messages).message.content
    assert whole
    assert "".join(one.delta for one in llm.stream_chat(messages)) == whole
    assert llm.complete("Once upon a time").text == whole
