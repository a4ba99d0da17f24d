"""The model server of the benchmarks answers as a client of the real ones expects it."""

from __future__ import annotations

import asyncio

import httpx

from session.models.llm import LiteLLM
from session.models.model import Prompt, ToolSpec
from tests.support.lean_model import TEXT, lean_model_process

ASKED = [{"role": "user", "content": 'say "stream": true and "tool_choice": {}'}]
NOTE = ToolSpec("save_memory", "Saves.", {"type": "object", "properties": {}})


async def test_it_answers_whole_streamed_and_by_a_tool() -> None:
    """Through LiteLLM, several at once on few connections; what stands in a text asks for nothing."""
    async with lean_model_process() as (url, _):
        model = LiteLLM(name="openai/stub", api_base=url, timeout_s=60)
        try:
            whole = await asyncio.gather(*(model.ask(Prompt(ASKED)) for _ in range(20)))
            pieces: list[str] = []
            streamed = await model.ask(Prompt(ASKED), pieces.append)
            forced = await model.ask(Prompt(ASKED, tools=[NOTE], force_tool="save_memory"))
            by_stream = await model.ask(Prompt(ASKED, tools=[NOTE], force_tool="save_memory"), pieces.append)
        finally:
            await model.close()

    assert {answer.text for answer in [*whole, streamed]} == {TEXT}
    assert "".join(pieces) == TEXT
    assert len(pieces) == 4
    assert whole[0].usage == streamed.usage
    assert whole[0].usage is not None and whole[0].usage.completion > 0
    assert [call.name for answer in (forced, by_stream) for call in answer.tool_calls] == ["save_memory"] * 2


async def test_a_request_may_come_in_pieces_and_another_path_is_refused() -> None:
    """Requests on one connection are answered in order, however their bytes come."""
    async with lean_model_process() as (url, _):
        base = httpx.URL(url)
        reader, writer = await asyncio.open_connection(base.host, base.port)
        request = b'POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 15\r\n\r\n{"messages":[]}'
        for piece in (request[:20], request[20:70], request[70:] + request):
            writer.write(piece)
            await writer.drain()
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            await reader.readexactly(int(head.rpartition(b"content-length: ")[2]))
        writer.close()
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}/models")).status_code == 404
