"""A scripted OpenAI-compatible engine, for faults and extremes a real one will not produce on demand.

Each request takes the next queued `Reply`; without one it answers from a fixed default. Tokens are
words and spaces, ids and logprobs are functions of the text, so equal scripts give equal tokens.
Every request body is kept as received (`bodies`). Run it by itself with

    python tests/scripted_engine.py --port 8123

and drive it over HTTP: POST /script with a JSON list of replies, GET /bodies for what arrived.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

DEFAULT_TEXT = (
    "<think>\nMultiply 235 by 478. 235 × 400 = 94000, 235 × 78 = 18330, the sum is 112330.\n</think>\n\n"
    "The product is \\(235 \\times 478 = 112330\\), so the answer is \\(\\boxed{112330}\\)."
)

Ending = Literal["finish", "close", "error", "garbage", "stall", "no_finish"]
Logprobs = Literal[
    "normal", "null", "clamped", "none", "missing_some", "one_of_each", "null_rows", "nan_rows"
]
"""`one_of_each`: position 1 clamped, position 2 null. `null_rows`: at every fifth position nothing is a
number, as vLLM writes it; `nan_rows`: the same as bare NaN, as other servers do."""
Channel = Literal["content", "reasoning", "reasoning_content"]


@dataclass(frozen=True)
class Reply:
    """One scripted answer. Defaults make an ordinary, complete one."""

    text: str = DEFAULT_TEXT
    fork_at: int | None = None
    """From this position on every token is another one."""
    drift: float = 0.0
    """Added to every logprob (nats)."""
    finish_reason: str = "stop"
    ending: Ending = "finish"
    ending_after: int | None = None
    """Tokens before `ending` strikes; None means after the last."""
    tokens_per_second: float | None = None
    tokens_per_chunk: int = 1
    logprobs: Logprobs = "normal"
    token_ids: bool = True
    channel: Channel = "content"
    status: int = 200
    error: str = ""
    """With status ≥ 400: the message in the error body."""
    seeded: bool = False
    """The seed of a sampled request decides its tokens: seed 0 gives the text, another words of it."""
    observed_fork_at: int | None = None
    """As `fork_at`, for requests that ask for no logprobs: an engine that answers otherwise when watched."""
    cached_tokens: int | None = None
    """`usage.prompt_tokens_details.cached_tokens`; a request with a `cache_salt` gets 0."""
    answers_after_s: float = 0.0
    """Silence before even the headers of the answer, as in a queue."""
    raw: tuple[dict[str, Any], ...] | None = None
    """These chunks as they stand instead of anything above, and then [DONE]."""
    prompt_suffix: str = ""
    """Makes the rendered prompt (and its ids) another one, as a changed chat template would."""


@dataclass
class Script:
    """What the engine is told and what it saw; safe to touch from the test's thread."""

    model: str = "scripted"
    version: str = "0.0.0-scripted"
    max_model_len: int = 65536
    health: int = 200
    running: float = 0.0
    tokenizes: bool = True
    """Whether `/tokenize` exists."""
    waiting: float = 0.0
    served: int | None = None
    """What the counter of finished requests says; None leaves it out."""
    replies: deque[Reply] = field(default_factory=deque)
    bodies: list[bytes] = field(default_factory=list)
    in_flight: int = 0
    at_once: int | None = None
    """Streams computed together; later ones wait for their turn, as with vLLM's --max-num-seqs."""
    queued: int = 0
    default: Reply = field(default_factory=Reply)
    answer: Callable[[dict[str, Any]], Reply] | None = None
    """Chooses by the request's body where nothing is queued."""

    def enqueue(self, *replies: Reply) -> None:
        self.replies.extend(replies)


def tokenize(text: str) -> list[str]:
    """Words with their leading space, digits one by one, everything else character by character."""
    return re.findall(r" ?[A-Za-z]+|\d|.", text, re.DOTALL)


_TEXTS: dict[int, str] = {}
"""Text of every token seen so far, by id: what `/detokenize` answers from."""


def token_id(token: str) -> int:
    number = zlib.crc32(token.encode()) % 50_000
    _TEXTS[number] = token
    return number


def _logprob(token: str, position: int) -> float:
    """Below ln 0.5, so that a token and its runner-up stay a distribution."""
    return -0.75 - (zlib.crc32(f"{token}:{position}".encode()) % 1000) / 1000.0


class ScriptedEngine:
    """The ASGI application around a `Script`."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self._turns: deque[asyncio.Event] = deque()
        self.app = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/version", self.version),
                Route("/v1/models", self.models),
                Route("/metrics", self.metrics),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/script", self.set_script, methods=["POST"]),
                Route("/bodies", self.get_bodies),
            ]
        )

    async def health(self, _: Request) -> Response:
        return Response(status_code=self.script.health)

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": self.script.version})

    async def models(self, _: Request) -> Response:
        if self.script.health != 200:
            return Response(status_code=503)
        model = {"id": self.script.model, "object": "model", "max_model_len": self.script.max_model_len}
        return JSONResponse({"object": "list", "data": [model]})

    async def metrics(self, _: Request) -> Response:
        running, waiting = self.script.running + self.script.in_flight, self.script.waiting
        waiting += self.script.queued
        text = (
            "# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="0",model_name="{self.script.model}"}} {running}\n'
            "# TYPE vllm:num_requests_waiting gauge\n"
            f'vllm:num_requests_waiting{{engine="0",model_name="{self.script.model}"}} {waiting}\n'
        )
        if self.script.served is not None:
            text += (
                "# TYPE vllm:request_success_total counter\n"
                f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {self.script.served}\n'
                'vllm:request_success_total{engine="0",finished_reason="length"} 0.0\n'
            )
        return PlainTextResponse(text)

    async def tokenize(self, request: Request) -> Response:
        if not self.script.tokenizes:
            return Response(status_code=404)
        return JSONResponse({"count": len(_prompt(await request.json(), ""))})

    async def detokenize(self, request: Request) -> Response:
        known = (await request.json())["tokens"]
        return JSONResponse({"prompt": "".join(_TEXTS.get(one, "\ufffd") for one in known)})

    async def set_script(self, request: Request) -> Response:
        """Body: a list of replies to queue, or an object with Script fields to set (health, running…)."""
        wanted = await request.json()
        if isinstance(wanted, list):
            self.script.enqueue(*(Reply(**reply) for reply in wanted))
        else:
            known = {f.name for f in fields(Script)} - {"replies", "bodies", "default", "answer"}
            for name, value in wanted.items():
                if name == "default":
                    self.script.default = Reply(**value)
                elif name in known:
                    setattr(self.script, name, value)
                else:
                    return JSONResponse({"error": f"unknown field {name}"}, status_code=400)
        return JSONResponse({"queued": [asdict(reply) for reply in self.script.replies]})

    async def get_bodies(self, _: Request) -> Response:
        return JSONResponse([body.decode() for body in self.script.bodies])

    async def chat(self, request: Request) -> Response:
        body, reply, refusal = await self._take(request)
        if refusal:
            return refusal
        if reply.answers_after_s:
            await asyncio.sleep(reply.answers_after_s)
        if not body.get("stream"):
            return JSONResponse(await _whole(self._stream(body, reply)))
        return StreamingResponse(self._stream(body, reply), media_type="text/event-stream")

    async def completions(self, request: Request) -> Response:
        """A given sequence: gone on with, or only judged where the prompt's logprobs are asked for."""
        body, reply, refusal = await self._take(request)
        if refusal:
            return refusal
        if "prompt_logprobs" in body:
            return await self._prefill(body, reply)
        lines = self._continuation(body, reply)
        if not body.get("stream"):
            return JSONResponse(await _whole_continuation(lines))
        return StreamingResponse(lines, media_type="text/event-stream")

    async def _continuation(self, body: dict[str, Any], reply: Reply) -> AsyncIterator[str]:
        """The rest of `reply.text` where the prompt holds its beginning, else all of it."""
        given = _given(body["prompt"])
        tokens = tokenize(reply.text)
        begun = given == [token_id(token) for token in tokens[: len(given)]]
        rest = replace(reply, text="".join(tokens[len(given) :])) if begun else reply
        asked = {**body, "top_logprobs": body.get("logprobs"), "logprobs": body.get("logprobs") is not None}
        async for line in self._stream(asked, rest, first=len(given)):
            yield line if "[DONE]" in line or "{not json" in line else _as_completion(line, body["prompt"])

    async def _prefill(self, body: dict[str, Any], reply: Reply) -> Response:
        """What the engine thinks of a given sequence: `reply.text` is the answer it would have given."""
        if reply.ending == "stall":
            await asyncio.sleep(3600)
        if reply.ending == "garbage":
            return Response("{not json", media_type="application/json")
        choice = {"index": 0, "text": ".", "finish_reason": "length", "logprobs": None}
        choice["prompt_logprobs"] = _prompt_logprobs(body["prompt"], reply)
        fingerprint = f"scripted-{self.script.version}"
        return JSONResponse({"choices": [choice], "system_fingerprint": fingerprint})

    async def _take(self, request: Request) -> tuple[dict[str, Any], Reply, Response | None]:
        """The request's body, the reply it gets, and the refusal if it gets one."""
        raw = await request.body()
        self.script.bodies.append(raw)
        body = json.loads(raw)
        default = self.script.answer(body) if self.script.answer else self.script.default
        reply = self.script.replies.popleft() if self.script.replies else default
        if reply.status >= 400:
            error = {"message": reply.error, "type": "BadRequestError", "code": reply.status}
            return body, reply, JSONResponse({"error": error}, status_code=reply.status)
        if body.get("model") != self.script.model:
            message = f"The model `{body.get('model')}` does not exist."
            error = {"message": message, "code": 404}
            return body, reply, JSONResponse({"error": error}, status_code=404)
        return body, reply, None

    async def _stream(self, body: dict[str, Any], reply: Reply, first: int = 0) -> AsyncIterator[str]:
        await self._turn()
        self.script.in_flight += 1
        try:
            async for line in self._lines(body, reply, first):
                yield line
        finally:
            self.script.in_flight -= 1
            if self._turns:
                self._turns.popleft().set()

    async def _turn(self) -> None:
        if self.script.at_once is None or self.script.in_flight < self.script.at_once:
            return
        turn = asyncio.Event()
        self._turns.append(turn)
        self.script.queued += 1
        try:
            await turn.wait()
        finally:
            self.script.queued -= 1
            if turn in self._turns:
                self._turns.remove(turn)

    async def _lines(self, body: dict[str, Any], reply: Reply, first: int) -> AsyncIterator[str]:
        """`first`: the position that the first token has in its answer."""

        def chunk(**fields: Any) -> str:
            document = {"object": "chat.completion.chunk", "model": self.script.model, **fields}
            return f"data: {json.dumps(document)}\n\n"

        if reply.raw is not None:
            for document in reply.raw:
                yield f"data: {json.dumps(document)}\n\n"
            yield "data: [DONE]\n\n"
            return
        limit = int(body.get("max_tokens") or 10**9)
        tokens = _drawn(tokenize(reply.text), body) if reply.seeded else tokenize(reply.text)
        observed = bool(body.get("logprobs"))
        fork_at = reply.fork_at if observed else (reply.observed_fork_at or reply.fork_at)
        cut, tokens = len(tokens) > limit, tokens[:limit]
        head: dict[str, Any] = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        if reply.token_ids and body.get("return_token_ids"):
            head["prompt_token_ids"] = _prompt(body, reply.prompt_suffix)
        yield chunk(**head)
        strike = len(tokens) if reply.ending_after is None else reply.ending_after
        thinking, began = False, time.monotonic()
        for start in range(0, min(len(tokens), strike), reply.tokens_per_chunk):
            part = tokens[start : min(start + reply.tokens_per_chunk, strike)]
            shown = [
                forked(token) if fork_at is not None and start + offset >= fork_at else token
                for offset, token in enumerate(part)
            ]
            delta, thinking = _delta("".join(shown), reply.channel, thinking)
            choice: dict[str, Any] = {"index": 0, "delta": delta}
            if observed:
                top = int(body.get("top_logprobs") or 0)
                choice["logprobs"] = _logprobs(shown, first + start, reply, top)
            if reply.token_ids and body.get("return_token_ids"):
                choice["token_ids"] = [token_id(token) for token in shown]
            yield chunk(choices=[choice])
            if reply.tokens_per_second:  # by the clock, so that a busy machine does not slow the rate
                due = began + (start + len(part)) / reply.tokens_per_second
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        if reply.ending == "close":
            raise ConnectionResetError("scripted: the engine goes away")
        if reply.ending == "error":
            yield f"data: {json.dumps({'error': {'message': 'EngineCore died', 'code': 500}})}\n\n"
            return
        if reply.ending == "garbage":
            yield "data: {not json\n\n"
            return
        if reply.ending == "stall":
            await asyncio.sleep(3600)
        if reply.ending == "no_finish":
            return
        finish = "length" if cut else reply.finish_reason
        yield chunk(choices=[{"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish}])
        usage: dict[str, Any] = {"prompt_tokens": len(_prompt(body, "")), "completion_tokens": len(tokens)}
        if reply.cached_tokens is not None:
            cached = 0 if body.get("cache_salt") else reply.cached_tokens
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        yield chunk(choices=[], usage=usage, system_fingerprint=f"scripted-{self.script.version}")
        yield "data: [DONE]\n\n"


def _as_completion(line: str, prompt: list[int]) -> str:
    """A chat's chunk as one of `/v1/completions`, in which vLLM repeats the prompt once, in the choice."""
    document = json.loads(line.removeprefix("data: "))
    told = document.pop("prompt_token_ids", None)
    for choice in document.get("choices") or []:
        choice["text"] = choice.pop("delta").get("content") or ""
        choice["prompt_token_ids"] = prompt if told else None
        if listed := choice.get("logprobs"):
            content = listed["content"]
            choice["logprobs"] = {
                "tokens": [entry["token"] for entry in content],
                "token_logprobs": [entry["logprob"] for entry in content],
                # As a map, and not in order: vLLM puts the generated token first.
                "top_logprobs": [
                    {other["token"]: other["logprob"] for other in reversed(entry["top_logprobs"])}
                    for entry in content
                ],
            }
    return f"data: {json.dumps({**document, 'object': 'text_completion'})}\n\n"


async def _whole_continuation(lines: AsyncIterator[str]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    whole: dict[str, Any] = {"index": 0, "text": "", "token_ids": [], "logprobs": None}
    async for line in lines:
        if line.startswith("data: [DONE]"):
            break
        chunk = json.loads(line.removeprefix("data: "))
        document |= {key: value for key, value in chunk.items() if key != "choices"}
        for part in chunk["choices"]:
            whole["text"] += part["text"]
            whole["token_ids"] += part.get("token_ids") or []
            whole["finish_reason"] = part.get("finish_reason")
            whole["prompt_token_ids"] = part["prompt_token_ids"] or whole.get("prompt_token_ids")
            for name, values in (part.get("logprobs") or {}).items():
                whole["logprobs"] = whole["logprobs"] or {}
                whole["logprobs"].setdefault(name, []).extend(values)
    return document | {"choices": [whole]}


async def _whole(lines: AsyncIterator[str]) -> dict[str, Any]:
    """The chunks of a stream as the one reply that vLLM gives without streaming."""
    document: dict[str, Any] = {"object": "chat.completion"}
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": ""}, "logprobs": None}
    async for line in lines:
        if line.startswith("data: [DONE]"):
            break
        chunk = json.loads(line.removeprefix("data: "))
        document |= {key: value for key, value in chunk.items() if key not in ("choices", "object")}
        for part in chunk["choices"]:
            choice["message"]["content"] += part["delta"].get("content") or ""
            choice["finish_reason"] = part.get("finish_reason")
            if part.get("token_ids"):
                choice.setdefault("token_ids", []).extend(part["token_ids"])
            if part.get("logprobs"):
                choice["logprobs"] = choice["logprobs"] or {"content": []}
                choice["logprobs"]["content"] += part["logprobs"]["content"]
    return document | {"choices": [choice]}


def _drawn(tokens: list[str], body: dict[str, Any]) -> list[str]:
    """The text's own tokens, drawn again by the seed."""
    seed = body.get("seed")
    if not seed or not body.get("temperature"):
        return tokens
    return random.Random(seed).choices(tokens, k=len(tokens))


def _prompt(body: dict[str, Any], suffix: str) -> list[int]:
    rendered = "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in body.get("messages", []))
    return [token_id(token) for token in tokenize(rendered + "<|assistant|>" + suffix)]


def _given(ids: list[int]) -> list[int]:
    """What follows the rendered chat in a prompt of ids: the beginning of an answer."""
    opening = [token_id(token) for token in tokenize("<|assistant|>")]
    answer = max(n for n in range(len(opening), len(ids) + 1) if ids[n - len(opening) : n] == opening)
    return ids[answer:]


def _prompt_logprobs(ids: list[int], reply: Reply) -> list[dict[str, Any] | None] | None:
    """One entry per token: after the prompt, the answer's own logprobs; another token is an unlikely one."""
    if reply.logprobs == "none":
        return None
    answer = len(ids) - len(_given(ids))
    expected = tokenize(reply.text)
    entries: list[dict[str, Any] | None] = [None]
    for index, given in enumerate(ids[1:], start=1):
        position = index - answer
        if position < 0 or position >= len(expected):
            entries.append({str(given): {"logprob": -3.0, "rank": 1}})
            continue
        likely = token_id(expected[position])
        value: float | None = _logprob(expected[position], position) + reply.drift
        if reply.logprobs == "null":
            value = None
        elif reply.logprobs == "clamped" and position % 5 == 0:
            value = -9999.0
        entry = {str(likely): {"logprob": value, "rank": 1}}
        entry.setdefault(str(given), {"logprob": -9.0, "rank": 700})
        entries.append(None if reply.logprobs == "missing_some" and position % 3 == 0 else entry)
    return entries


def forked(token: str) -> str:
    """The runner-up at every position, and what is generated from a fork on."""
    return token[::-1] + "~" if token.strip() else token + " "


def _delta(text: str, channel: Channel, thinking: bool) -> tuple[dict[str, Any], bool]:
    """Where the text goes: all in content, or reasoning split off as a server-side parser does."""
    if channel == "content":
        return {"content": text}, False
    delta: dict[str, Any] = {}
    if "<" in text or ">" in text or "think" in text:
        # Tag pieces vanish; the state flips on the word itself, opening first, closing second.
        return {"content": None}, (not thinking if "think" in text else thinking)
    delta[channel if thinking else "content"] = text
    return delta, thinking


def _logprobs(tokens: list[str], start: int, reply: Reply, top: int) -> dict[str, Any] | None:
    if reply.logprobs == "none":
        return None
    content = []
    for offset, token in enumerate(tokens):
        position = start + offset
        if reply.logprobs == "missing_some" and position % 3 == 0:
            continue
        value: float | None = _logprob(token, position) + reply.drift
        if reply.logprobs == "null":
            value = None
        elif reply.logprobs == "clamped" and position % 5 == 0:
            value = -9999.0
        elif reply.logprobs == "one_of_each" and position in (1, 2):
            value = -9999.0 if position == 1 else None
        runner_up = f"token_id:{token_id(forked(token))}"
        second: float | None = (value or 0.0) - 0.05
        if reply.logprobs in ("null_rows", "nan_rows") and position % 5 == 0:
            value = second = None if reply.logprobs == "null_rows" else float("nan")
        alternatives = [(f"token_id:{token_id(token)}", value), (runner_up, second)][:top]
        content.append(
            {
                "token": f"token_id:{token_id(token)}",
                "logprob": value,
                "bytes": list(token.encode()),
                "top_logprobs": [{"token": t, "logprob": lp, "bytes": None} for t, lp in alternatives],
            }
        )
    return {"content": content}


@contextmanager
def serving(engine: ScriptedEngine, port: int = 0) -> Iterator[str]:
    """Serve in a thread of this process; yields the base URL once it accepts requests."""
    config = uvicorn.Config(
        engine.app, log_level="warning", ws="none", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    # asyncio turns Nagle's delay off only on sockets that name their protocol.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        # It listens already; the first request waits until the loop accepts.
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--model", default="scripted")
    options = parser.parse_args()
    engine = ScriptedEngine(Script(model=options.model))
    uvicorn.run(engine.app, host="127.0.0.1", port=options.port, log_level="warning", ws="none")


if __name__ == "__main__":
    main()
