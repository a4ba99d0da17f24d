"""The client of our own API, as the command line uses it: ask, look on, stop, and see what goes on."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote

import httpx
import orjson

from channels.message import Attachment
from gateway.dispatch.events import Event, read_event
from gateway.dispatch.policy import ModelStanding, of_part
from gateway.errors import GatewayError, Unreachable
from gateway.service.outcome import Outcome, ToldAway

T = TypeVar("T")
# A longer wait is several requests of this length.
WAIT_S = 60.0
# A queue that is written anew takes its time.
ERASE_WITHIN_S = 600.0
# How many rows of a listing are asked for at once.
PAGE = 1000
# A daemon that was there may restart: only one that is away for longer is given up.
AWAY_S = 15.0
AGAIN_S = 0.5
QUICK_S = 10.0
# Its process lives, and one that is busy must not be taken for none.
ALIVE_S = 5.0
HEARTBEATS_MISSED_S = 45.0
# By this a hint is known that is meant for programs that speak HTTP.
_OF_THE_API = re.compile(r"(GET|POST|PATCH|PUT|DELETE) /|\?key=|\"id\"")
_CURE = "chat-gateway status"
_CURES_OF_PARKED = {404: "chat-gateway parked list", 409: "choose one with --key: chat-gateway parked list"}
_CURES_OF_TRACE = {409: "choose one with --key"}
_CURES_OF_CRON = {404: "chat-gateway cron list"}


class Client:
    """Talks to one daemon.

    Args:
        url: as the daemon's entry in ``state/daemon.json`` has it.
        token: ``http.token``; empty where none is set.
    """

    def __init__(self, url: str, token: str = "") -> None:
        headers = {b"Authorization": b"Bearer " + token.encode()} if token else {}
        self.url = url
        # Without TLS no certificates are needed; reading them takes 30 ms.
        verify = url.startswith("https:")
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=QUICK_S, trust_env=False, verify=verify
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def alive(self) -> bool:
        """Say whether the daemon answers within five seconds."""
        try:
            answer = await self._http.get("/healthz", timeout=ALIVE_S)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200

    # -- talking -----------------------------------------------------------------------------------

    async def ask(
        self,
        key: str,
        text: str,
        message_id: str,
        *,
        files: Sequence[Attachment] = (),
        within_s: float | None = None,
        away: ToldAway = None,
    ) -> Outcome | None:
        """Hand in a message and wait for how it ends, over restarts of the daemon too.

        ``files`` lie in ``media/`` of its workspace. ``away`` is told once why the message cannot be handed
        in just now; it is tried again.

        Returns:
            None when ``within_s`` seconds ran out first; the turn goes on.

        Raises:
            Unreachable: the daemon, or its queue, went away and did not come back.
            GatewayError: it refused.
        """
        now = asyncio.get_running_loop().time
        until = math.inf if within_s is None else now() + within_s
        # When the daemon went away; None while it answers.
        since: float | None = None
        last: Unreachable | None = None
        cures = {503: "chat-gateway doctor"}
        body: dict[str, Any] = {"key": key, "text": text, "id": message_id}
        if files:
            body["attachments"] = [file.model_dump(include={"kind", "name", "mime", "ref"}) for file in files]
        while (left := until - now()) > 0:
            wait = min(WAIT_S, left)
            params = {"wait": f"{wait:.3f}"}
            try:
                found = await self._call(
                    "POST", "/v1/messages", body, within_s=wait + QUICK_S, params=params, cures=cures
                )
            except Unreachable as error:
                if last is None and away is not None:
                    away(str(error))
                since, last = since or now(), error
                if now() - since > AWAY_S:
                    break
                await asyncio.sleep(min(AGAIN_S, max(until - now(), 0)))
                continue
            since = None
            if "reply" in found:
                kind = "reply" if found.get("kind") == "reply" else "notice"
                sent = "\n".join(map(str, found.get("files") or ()))
                return Outcome(cast(Literal["reply", "notice"], kind), str(found["reply"]), sent)
        if since is not None and last is not None:
            raise last
        return None

    async def stop(self, key: str) -> None:
        """Stop the turn that runs for ``key``."""
        await self._call("POST", "/v1/stop", {"key": key})

    async def clear(self, key: str) -> bool:
        """Delete the active transcript of ``key`` and end the turn that runs; say whether there was one."""
        return bool((await self._call("POST", "/clear-session", {"key": key}, within_s=WAIT_S))["cleared"])

    async def erase(self, *, key: str = "", person: str = "") -> dict[str, Any]:
        """Remove all that is kept of a key or a person; return ``cleared`` and ``erased`` of the route."""
        whom = {"person": person} if person else {"key": key}
        return await self._call(
            "POST", "/clear-session", {**whom, "everything": True}, within_s=ERASE_WITHIN_S
        )

    async def events(self, key: str) -> AsyncGenerator[Event]:
        """Yield what happens in a chat from now on; a broken connection is taken up again without a gap."""
        from httpx_sse import aconnect_sse

        last = ""
        while True:
            try:
                async with aconnect_sse(
                    self._http,
                    "GET",
                    "/v1/events",
                    params={"key": key, "draft": "true"},
                    headers={"Last-Event-ID": last} if last else {},
                    timeout=httpx.Timeout(QUICK_S, read=HEARTBEATS_MISSED_S),
                ) as source:
                    if source.response.status_code != 200:
                        await source.response.aread()
                        raise _refusal(source.response, {})
                    async for sse in source.aiter_sse():
                        # An id without an event is where the stream begins.
                        last = sse.id or last
                        if (event := read_event(sse.data)) is not None:
                            yield event
            except (httpx.TransportError, Unreachable):
                pass
            await asyncio.sleep(1.0)

    # -- looking -----------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """Return what ``status`` shows."""
        return await self._call("GET", "/v1/status")

    async def model(self) -> ModelStanding:
        """Say whether the model answers, as far as the daemon knows; a cure ends in its restart."""
        standing = of_part((await self.status())["parts"].get("model") or {})
        return (
            replace(standing, hint=f"{standing.hint}; then restart the gateway")
            if standing.foreseen
            else standing
        )

    async def parked(self, *, files: bool = False) -> list[dict[str, Any]]:
        """List the parked letters, oldest first; with ``files`` each with those that it names."""
        params = {"limit": str(PAGE)} | ({"files": "true"} if files else {})
        rows: list[dict[str, Any]] = []
        while True:
            found = await self._call("GET", "/v1/parked", params=params)
            rows += found["parked"]
            # A daemon of an older version has no pages.
            if (following := found.get("next")) is None:
                return rows
            params["cursor"] = str(following)

    async def parked_one(self, message_id: str, key: str | None) -> dict[str, Any]:
        """Show one parked letter with its body."""
        return await self._of_parked("GET", _parked(message_id), key)

    async def retry(self, message_id: str, key: str | None) -> dict[str, Any]:
        """Put a parked letter back at the end of its queue."""
        return await self._of_parked("POST", f"{_parked(message_id)}/retry", key)

    async def drop(self, message_id: str, key: str | None) -> dict[str, Any]:
        """Remove a parked letter for good."""
        return await self._of_parked("DELETE", _parked(message_id), key)

    async def _of_parked(self, method: str, path: str, key: str | None) -> dict[str, Any]:
        return await self._call(method, path, params=_key(key), cures=_CURES_OF_PARKED)

    async def trace(self, message_id: str, key: str | None) -> dict[str, Any]:
        """Tell the life of a message."""
        path = f"/v1/trace/{quote(message_id, safe='')}"
        return await self._call("GET", path, params=_key(key), cures=_CURES_OF_TRACE, within_s=WAIT_S)

    async def run_job(self, job_id: str) -> dict[str, Any]:
        """Run a cron job now, beside its schedule."""
        return await self._call("POST", f"/v1/cron/{quote(job_id, safe='')}/run", cures=_CURES_OF_CRON)

    async def _call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        cures: Mapping[int, str] | None = None,
        within_s: float = QUICK_S,
    ) -> dict[str, Any]:
        try:
            answer = await self._http.request(
                method,
                path,
                content=None if body is None else orjson.dumps(body),
                headers={} if body is None else {"Content-Type": "application/json"},
                params=params,
                timeout=within_s,
            )
        except httpx.TransportError as error:
            text = f"the gateway at {self.url} does not answer: {type(error).__name__}"
            raise Unreachable(text, hint="chat-gateway run") from None
        if answer.status_code >= 400:
            raise _refusal(answer, cures or {})
        found = orjson.loads(answer.content)
        if not isinstance(found, dict):
            raise GatewayError(f"{self.url} sent an unexpected answer")
        return found


def _refusal(answer: httpx.Response, cures: Mapping[int, str]) -> GatewayError:
    """Make the error that the daemon answered; a hint of the API gives way to the command that does it."""
    try:
        said = orjson.loads(answer.content)
        text, hint = str(said["error"]), str(said["hint"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text, hint = f"the gateway answered {answer.status_code}", ""
    if _OF_THE_API.search(hint):
        hint = cures.get(answer.status_code, _CURE)
    if answer.status_code == 503:
        return Unreachable(text, hint=hint)
    if answer.status_code == 401:
        hint = "set http.token to the token of the running gateway"
    return GatewayError(text, hint=hint)


def _parked(message_id: str) -> str:
    return f"/v1/parked/{quote(message_id, safe='')}"


def _key(key: str | None) -> dict[str, str]:
    return {} if key is None else {"key": key}
