"""Run by the interpreter of a real nanobot: reads one JSON request from stdin, answers with one on stdout.

``{"do": "write", "workspace", "key", "messages", "metadata", "last_consolidated"}`` makes a session with its
own classes and saves it; ``{"do": "add", "workspace", "key", "messages"}`` loads one, adds and saves it;
``{"do": "read", "workspace", "keys"}`` loads sessions and answers
``{key: {"count", "history", "last_consolidated", "metadata", "warnings"}}``, where ``history`` is what its
``get_history`` gives. ``save``, ``load``, ``loop`` and ``memory`` measure, those with ``cron`` drive their
scheduler: see their functions.

Only the standard library and nanobot are imported here.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path

from loguru import logger
from nanobot.session.manager import Session, SessionManager

# So many messages are never there: nothing is cut off.
MANY = 1_000_000
warnings = []


def add_messages(session, messages):
    for message in messages:
        fields = dict(message)
        role, content = fields.pop("role"), fields.pop("content", None)
        at = fields.pop("timestamp", None)
        session.add_message(role, content, **fields)
        if at is not None:
            session.messages[-1]["timestamp"] = at


def write(workspace, key, messages, metadata=None, last_consolidated=0):
    manager = SessionManager(Path(workspace))
    session = Session(key=key, metadata=metadata or {}, last_consolidated=0)
    add_messages(session, messages)
    session.last_consolidated = last_consolidated
    manager.save(session)
    return {"count": len(session.messages)}


def add(workspace, key, messages):
    manager = SessionManager(Path(workspace))
    session = manager.get_or_create(key)
    add_messages(session, messages)
    manager.save(session)
    return {"count": len(session.messages)}


def read(workspace, keys):
    manager = SessionManager(Path(workspace))
    found = {}
    for key in keys:
        warnings.clear()
        session = manager.get_or_create(key)
        try:
            history = session.get_history(MANY)
        except Exception as error:  # noqa: BLE001 - the finding is the answer
            history = f"raised {type(error).__name__}: {error}"
        found[key] = {
            "count": len(session.messages),
            "history": history,
            "last_consolidated": session.last_consolidated,
            "metadata": session.metadata,
            "warnings": list(warnings),
        }
    return found


def save(workspace, key, times):
    """Seconds of each of ``times`` saves of a loaded session that grew by one turn, as its loop does them."""
    manager = SessionManager(Path(workspace))
    session = manager.get_or_create(key)
    took = []
    for number in range(times):
        session.add_message("user", f"question {number}")
        session.add_message("assistant", f"answer {number}")
        began = time.perf_counter()
        manager.save(session)
        took.append(time.perf_counter() - began)
    return {"took": took, "count": len(session.messages)}


def load(workspace, key, times, history, kept=False):
    """Seconds of each of ``times`` loads from disk, with ``history`` messages for a request (0: none).

    ``kept``: from the second on the session is in its memory.
    """
    took = []
    manager = SessionManager(Path(workspace))
    for _ in range(times):
        if not kept:
            manager = SessionManager(Path(workspace))
        began = time.perf_counter()
        session = manager.get_or_create(key)
        if history:
            session.get_history(history)
        took.append(time.perf_counter() - began)
    return {"took": took, "count": len(session.messages)}


def stub_provider():
    """A model in their process that answers at once; where it is offered save_memory alone, it saves."""
    from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest

    class Stub(LLMProvider):
        async def chat(self, messages, tools=None, **_):
            # Its consolidation offers save_memory alone.
            if tools and len(tools) == 1:
                arguments = {"history_entry": "[2026-01-01 10:00] They talked.", "memory_update": "notes"}
                return LLMResponse(None, [ToolCallRequest("c", "save_memory", arguments)])
            content = messages[-1]["content"]
            return LLMResponse(f"echo: {content if isinstance(content, str) else ''}"[:200])

        def get_default_model(self):
            return "stub"

    try:
        return Stub()
    except TypeError:
        # From 0.3 on a provider has a name.
        return Stub(provider_name="stub")


def provider_at(api_base):
    """Their own provider for a server that speaks as OpenAI does."""
    try:
        from nanobot.providers.litellm_provider import LiteLLMProvider
    except ImportError:
        from nanobot.providers.openai_compat_provider import OpenAICompatProvider

        return OpenAICompatProvider(api_key="none", api_base=api_base, default_model="stub")
    return LiteLLMProvider(api_key="none", api_base=api_base, default_model="openai/stub")


def loop(workspace, turns, chats=1, api_base=None, reached=None, size=0, in_turn=False):
    """Seconds of each of ``turns`` turns of ``chats`` sessions through its whole loop; all messages wait.

    ``in_turn``: a chat writes again once it is answered; newer ones answer together what waits in one chat.

    ``api_base`` names a server for the model; without one a stub in the process answers. ``reached`` is a
    file to which a line goes with each answer. ``size`` is the length of a message, about.
    """
    from nanobot.agent.loop import AgentLoop
    from nanobot.bus.events import InboundMessage
    from nanobot.bus.queue import MessageBus

    with contextlib.suppress(ImportError, AttributeError):
        from nanobot.config import schema

        # From 0.3 on their settings name tools that are only known once the loop was imported.
        schema._resolve_tool_config_refs()

    async def run():
        bus = MessageBus()
        agent = AgentLoop(bus, provider_at(api_base) if api_base else stub_provider(), Path(workspace))
        task = asyncio.create_task(agent.run())
        took = []
        waiting = iter(range(turns))

        async def write(chat_id):
            for number in itertools.islice(waiting, 1):
                text = f"message {number}".ljust(size, ".")
                await bus.publish_inbound(InboundMessage("cli", "ada", chat_id, text))

        for number in range(min(chats, turns) if in_turn else turns):
            await write(f"direct{number % chats}")
        before = time.perf_counter()
        while len(took) < turns:
            answer = await bus.consume_outbound()
            # Newer ones tell of their progress on the same bus.
            if not answer.content:
                continue
            now = time.perf_counter()
            took.append(now - before)
            before = now
            if reached:
                with Path(reached).open("a") as file:
                    file.write(f"{answer.chat_id}\n")
            if in_turn:
                await write(answer.chat_id)
        agent.stop()
        task.cancel()
        await asyncio.wait([task], timeout=10)
        return {"took": took}

    return asyncio.run(run())


def memory(workspace, chats, messages):
    """Bytes of resident memory that loading ``chats`` sessions of ``messages`` each adds."""
    manager = SessionManager(Path(workspace))
    before = resident()
    for number in range(chats):
        session = manager.get_or_create(f"cli:m{number}")
        assert len(session.messages) == messages
        session.get_history(messages)
    return {"bytes": resident() - before}


def resident():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS")


def cron_service(workspace, fired=None):
    """Their scheduler on ``cron/jobs.json`` of a workspace; what it runs is put into ``fired``."""
    from nanobot.cron.service import CronService

    async def on_job(job):
        fired.append({"id": job.id, **dataclasses.asdict(job.payload)})

    return CronService(Path(workspace) / "cron" / "jobs.json", on_job=on_job if fired is not None else None)


def cron_add(workspace, jobs):
    """Add jobs to their running service; each is the arguments of ``add_job``, its schedule a dict."""
    from nanobot.cron.types import CronSchedule

    async def work():
        service = cron_service(workspace)
        await service.start()
        made = [service.add_job(**{**job, "schedule": CronSchedule(**job["schedule"])}) for job in jobs]
        service.stop()
        return [job.id for job in made]

    return asyncio.run(work())


def cron_list(workspace):
    """Their list of all jobs, and what they warned of."""
    jobs = cron_service(workspace).list_jobs(include_disabled=True)
    return {"jobs": [dataclasses.asdict(job) for job in jobs], "warnings": list(warnings)}


def cron_run(workspace, count, within_s):
    """Let their scheduler run until it fired ``count`` jobs; return what it fired, then their list."""
    fired = []

    async def work():
        service = cron_service(workspace, fired)
        await service.start()
        ends = time.monotonic() + within_s
        while len(fired) < count and time.monotonic() < ends:
            await asyncio.sleep(0.05)
        # It writes after it fired, and tells nobody when that is done.
        await asyncio.sleep(0.2)
        service.stop()

    asyncio.run(work())
    return {"fired": fired, **cron_list(workspace)}


def cron_later(workspace, job_id, change):
    """Have a service that is not running leave a change behind, as their agent beside a gateway does."""
    service = cron_service(workspace)
    done = service.remove_job(job_id) if change == "remove" else service.enable_job(job_id, False)
    return {"done": str(done)}


def main():
    logger.remove()
    logger.add(lambda message: warnings.append(str(message)), level="WARNING", format="{message}")
    request = json.loads(sys.stdin.buffer.read())
    answer = globals()[request.pop("do")](**request)
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
