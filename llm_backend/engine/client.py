"""Talks to one OpenAI-compatible engine: streaming, state, identity.

A request is sent once and exactly as recorded: the body is the receipt's text, byte for byte, and
nothing is retried (a second attempt would be another run). What goes wrong leaves here as an
`EngineError` with advice; no exception of the HTTP libraries passes this module.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import httpx
import openai
from openai import AsyncOpenAI, AsyncStream
from prometheus_client.parser import text_string_to_metric_families

from llm_backend.altered import streams
from llm_backend.engine.fold import Delta, StreamFold
from llm_backend.engine.fold_completions import CompletionsFold
from llm_backend.engine.manifest import Manifest, read_manifest
from llm_backend.engine.prefill import Prefill, read_prefill
from llm_backend.engine.process import read_pid_file
from llm_backend.errors import (
    EngineError,
    EngineInterrupted,
    EngineNotReady,
    EngineRejected,
    EngineUnreachable,
    ModelNotServed,
    PromptTooLong,
)
from llm_backend.receipt import EngineFingerprint, GenerationRequest, Message

PROBE_TIMEOUT = 5.0
"""Seconds for the small requests (health, version, models, metrics, tokenize)."""

KEPT_S = 2.0
"""Seconds an idle connection is kept for the next request. uvicorn, and so vLLM, closes them after 5, which
is httpx's own default, too: a request sent in that very moment failed as if no engine were there."""

_JSON = {"Content-Type": "application/json"}

RUNNING_METRIC = "vllm:num_requests_running"
WAITING_METRIC = "vllm:num_requests_waiting"
SERVED_METRIC = "vllm:request_success_total"


@dataclass(frozen=True, slots=True)
class EngineState:
    """Whether the engine can take a request now."""

    kind: Literal["ready", "loading", "unreachable", "dead"]
    detail: str = ""


class EngineClient:
    """One engine at `url` (without `/v1`)."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        manifest_file: Path | None = None,
        assigned_manifest: Path | None = None,
        stall_timeout: float = 300.0,
    ) -> None:
        """`manifest_file` is this machine's and counts if it names `url`; `assigned_manifest` belongs to
        the engine at `url` by the deployer's word, whatever address its own machine calls it by."""
        self.url = url.rstrip("/")
        self._manifest_file = manifest_file
        self._assigned_manifest = assigned_manifest
        self._stall_timeout = stall_timeout
        self._seen_ready = False
        # The openai client brings an HTTP library of its own, with classes of the same names.
        theirs = openai.DEFAULT_CONNECTION_LIMITS
        openai_limits = type(theirs)(
            max_connections=theirs.max_connections,
            max_keepalive_connections=theirs.max_keepalive_connections,
            keepalive_expiry=KEPT_S,
        )
        self.generated_at = float("-inf")
        """`time.monotonic()` when a token last arrived: proof that the engine generates."""
        self._openai = AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=api_key or "none",
            max_retries=0,
            timeout=openai.Timeout(stall_timeout, connect=PROBE_TIMEOUT),
            # A proxy variable must not reroute requests meant for this machine's engine.
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False, limits=openai_limits),
        )
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=PROBE_TIMEOUT,
            limits=httpx.Limits(max_keepalive_connections=20, keepalive_expiry=KEPT_S),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._openai.close()
        await self._http.aclose()

    async def state(self) -> EngineState:
        """Ask `/health` and `/v1/models`; never raises for an engine that is merely absent."""
        try:
            health = await self._http.get("/health")
            served = await self._served() if health.is_success else ()
        except EngineError as error:
            return EngineState("loading", error.problem)
        except httpx.HTTPError:
            if self._launching():
                return EngineState("loading")
            return EngineState("dead" if self._seen_ready else "unreachable")
        if health.is_success and served:
            self._seen_ready = True
            return EngineState("ready")
        return EngineState("dead" if self._seen_ready else "loading", f"/health answers {health.status_code}")

    def _launching(self) -> bool:
        """Whether an engine that start.sh launched is alive, though it does not answer yet."""
        if self._manifest_file is None:
            return False
        process = read_pid_file(self._manifest_file.with_name("engine.pid"))
        return process is not None and process.alive()

    def _manifest(self) -> Manifest | None:
        if self._assigned_manifest is not None:
            return read_manifest(self._assigned_manifest)
        manifest = read_manifest(self._manifest_file) if self._manifest_file else None
        return manifest if manifest is not None and manifest.url.rstrip("/") == self.url else None

    def start_id(self) -> str | None:
        """Which start of the engine answers, as the launch manifest tells; None for an engine not ours."""
        manifest = self._manifest()
        return manifest.start_id if manifest is not None else None

    async def identity(self) -> EngineFingerprint:
        """Who answers now: the launch manifest, if this launch wrote it, joined with what the API tells.

        Raises `EngineUnreachable` or `EngineNotReady`. Fields nobody tells stay None.
        """
        try:
            models, version = await asyncio.gather(self._models(), self._version())
        except httpx.HTTPError:
            raise EngineUnreachable(self.url) from None
        if not models:
            raise EngineNotReady("The engine serves no model yet.", "Wait for it to finish loading.")
        told: dict[str, Any] = {"model": models[0]["id"]}
        if version is not None:
            told["vllm_version"] = version
        if models[0].get("max_model_len"):
            told["max_model_len"] = models[0]["max_model_len"]
        manifest = self._manifest()
        # A manifest of another version belongs to an engine that has since been replaced.
        if manifest is not None and version in (None, manifest.fingerprint.vllm_version):
            return manifest.fingerprint.model_copy(update=told)
        return EngineFingerprint(**told)

    async def _models(self) -> list[dict[str, Any]]:
        response = await self._http.get("/v1/models")
        if response.status_code in (401, 403):
            raise EngineRejected(
                f"The engine at {self.url} refused the key (HTTP {response.status_code}).",
                "Set ENCORE_API_KEY to the key the engine was started with.",
            )
        if not response.is_success:
            raise EngineNotReady(
                f"The engine at {self.url} answers HTTP {response.status_code}.",
                "Wait, or look into llm.log.",
            )
        data = response.json().get("data")
        return [model for model in data or [] if model.get("id")]

    async def _served(self) -> tuple[str, ...]:
        return tuple(model["id"] for model in await self._models())

    async def _version(self) -> str | None:
        response = await self._http.get("/version")
        try:
            version = response.json().get("version") if response.is_success else None
        except ValueError:
            return None
        # A local build suffix ("+cpu") is the same source release; the manifest records the build.
        return str(version) if version else None

    async def prompt_tokens(self, model: str, messages: tuple[Message, ...]) -> int | None:
        """Length of the rendered prompt in tokens, or None where the engine cannot tell."""
        body = {"model": model, "messages": [message.model_dump() for message in messages]}
        try:
            response = await self._http.post("/tokenize", json=body)
            count = response.json().get("count") if response.is_success else None
        except (httpx.HTTPError, ValueError):
            return None
        return count if isinstance(count, int) else None

    async def token_texts(self, ids: Sequence[int]) -> dict[int, str]:
        """How the engine renders single tokens, for display; those it will not tell are left out.

        Raises `EngineUnreachable`.
        """
        model = (await self.identity()).model
        bodies = [{"model": model, "tokens": [token_id]} for token_id in ids]
        try:
            answers = await asyncio.gather(*(self._http.post("/detokenize", json=body) for body in bodies))
            return {
                token_id: str(answer.json()["prompt"])
                for token_id, answer in zip(ids, answers, strict=True)
                if answer.is_success
            }
        except httpx.HTTPError:
            raise EngineUnreachable(self.url) from None
        except (ValueError, KeyError):
            return {}

    async def detokenized(self, model: str, ids: Sequence[int]) -> str | None:
        """What these ids read together, special tokens included; None where the engine will not tell.

        Raises `EngineUnreachable`.
        """
        try:
            answer = await self._http.post("/detokenize", json={"model": model, "tokens": list(ids)})
            told = answer.json().get("prompt") if answer.is_success else None
        except httpx.HTTPError:
            raise EngineUnreachable(self.url) from None
        except (ValueError, AttributeError):  # not JSON, or not an object
            return None
        return told if isinstance(told, str) else None

    async def running(self) -> int | None:
        """Requests in flight on the engine now, or None where `/metrics` does not say."""
        return await self._metric(RUNNING_METRIC)

    async def waiting(self) -> int | None:
        """Requests the engine has accepted and not begun, or None where `/metrics` does not say."""
        return await self._metric(WAITING_METRIC)

    async def served(self) -> int | None:
        """Requests the engine has finished since its start, or None where `/metrics` does not say."""
        return await self._metric(SERVED_METRIC)

    async def _metric(self, name: str) -> int | None:
        """The sum of a metric over its labels."""
        try:
            response = await self._http.get("/metrics")
        except httpx.HTTPError:
            return None
        lines = "\n".join(line for line in response.text.splitlines() if line.startswith(name))
        samples = [s for family in text_string_to_metric_families(lines + "\n") for s in family.samples]
        return int(sum(sample.value for sample in samples)) if samples else None

    async def generate_one(self, within_s: float) -> None:
        """Have the engine generate one token, as a chat request would.

        Raises `EngineUnreachable`, or `EngineNotReady` when none came within `within_s` seconds.
        """
        model = (await self.identity()).model
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "1"}],
            "max_tokens": 1,
            "temperature": 0.0,
        }
        try:
            response = await self._http.post("/v1/chat/completions", json=body, timeout=within_s)
            choices = response.json().get("choices") if response.is_success else None
        except httpx.TimeoutException:
            raise EngineNotReady(
                f"The engine generated nothing within {within_s:.0f} s.",
                "It may be busy with long answers, or stuck: see llm.log.",
            ) from None
        except httpx.HTTPError:
            raise EngineUnreachable(self.url) from None
        except (ValueError, AttributeError):  # not JSON, or not an object
            choices = None
        if not choices:
            raise EngineNotReady(
                f"The engine answers, but generates nothing (HTTP {response.status_code}).",
                "Restart it with ./start.sh; details are in llm.log.",
            )
        self.generated_at = time.monotonic()

    async def prefill(self, model: str, token_ids: Sequence[int]) -> Prefill:
        """The engine's logprob of every token of a sequence, from one prefill and nothing cached.

        Raises `EngineUnreachable`, `EngineNotReady` or `EngineRejected`.
        """
        body = {
            "model": model,
            "prompt": list(token_ids),
            "max_tokens": 1,  # the engine takes no less
            "temperature": 0.0,
            "prompt_logprobs": 1,
            "cache_salt": uuid.uuid4().hex,
        }
        try:
            reply = await self._openai.post("/completions", body=body, cast_to=object)
        except openai.APITimeoutError:
            raise EngineNotReady(
                f"The engine gave no answer for {self._stall_timeout:.0f} s.",
                "Try again when it is less busy, or raise ENCORE_STALL_TIMEOUT.",
            ) from None
        except openai.APIConnectionError:
            raise EngineUnreachable(self.url) from None
        except openai.APIStatusError as error:
            raise await self._refusal(error, model, max_tokens=1) from None
        except json.JSONDecodeError:
            reply = None
        return read_prefill(reply, token_ids)

    def stream(self, request: GenerationRequest) -> EngineStream:
        """Send `request.body` as it stands; iterate the result inside `async with`.

        A body that asks for the whole answer at once gives one delta.
        """
        return EngineStream(self, request)

    async def _open(self, request: GenerationRequest) -> AsyncStream[Any] | _Whole:
        path, content = request.endpoint.removeprefix("/v1"), request.body.encode()
        try:
            if not streams(request):
                reply = await self._openai.post(
                    path, content=content, options={"headers": _JSON}, cast_to=object
                )
                return _Whole(reply)
            return await self._openai.post(
                path,
                content=content,
                options={"headers": _JSON},
                cast_to=object,
                stream=True,
                stream_cls=AsyncStream[Any],
            )
        except json.JSONDecodeError:
            raise EngineInterrupted(0, "it sent unreadable data") from None
        except openai.APITimeoutError:
            raise EngineInterrupted(0, f"nothing came for {self._stall_timeout:.0f} s") from None
        except openai.APIConnectionError:
            raise EngineUnreachable(self.url) from None
        except openai.APIStatusError as error:
            raise await self._refusal(error, request.model, request.sampling.max_tokens) from None

    async def _refusal(self, error: openai.APIStatusError, model: str, max_tokens: int) -> EngineError:
        message = _message_of(error)
        if error.status_code >= 500:
            return EngineNotReady(
                f"The engine failed to answer (HTTP {error.status_code}: {message}).",
                "If it does not recover, restart it with ./start.sh; details are in llm.log.",
            )
        if error.status_code == 404 and "model" in message.lower():
            return ModelNotServed(model, await self._served())
        if re.search(r"maximum (context|model) length|max_model_len|context length", message):
            identity = await self.identity()
            if identity.max_model_len is not None:
                return PromptTooLong(None, max_tokens, identity.max_model_len)
        if limit := re.search(r"logprobs of (\d+),? which is greater than max allowed: (\d+)", message):
            return EngineRejected(
                f"{limit[1]} alternatives per token were asked for; this engine gives at most {limit[2]}.",
                f"Set alternatives per token (top_logprobs) to {limit[2]} or less, or start the engine with "
                f"--max-logprobs {limit[1]}.",
            )
        if error.status_code in (401, 403):
            return EngineRejected("The engine refused the key.", "Set ENCORE_API_KEY to the engine's key.")
        return EngineRejected(
            f"The engine refused the request: {message}", "Change the setting it names and ask again."
        )


class EngineStream:
    """One answer arriving. `fold` holds what the stream told besides its deltas."""

    def __init__(self, client: EngineClient, request: GenerationRequest) -> None:
        self.fold = _fold_for(request)
        self._client = client
        self._request = request
        self._response: AsyncStream[Any] | _Whole | None = None

    async def __aenter__(self) -> Self:
        self._response = await self._client._open(self._request)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, EngineInterrupted):
            self._client.generated_at = float("-inf")  # an answer that broke off is no proof any longer
        # Closing the connection is what makes vLLM abort a generation nobody waits for.
        if self._response is not None:
            await self._response.close()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Deltas until the engine's finish; raises `EngineInterrupted` when it ends any other way."""
        assert self._response is not None, "iterate inside `async with`"
        count = 0
        try:
            async for chunk in self._response:
                if not isinstance(chunk, dict):
                    raise EngineInterrupted(count, "it sent something that is not a chunk")
                delta = self.fold.feed(chunk)
                count += len(delta.tokens)
                if delta.tokens:
                    self._client.generated_at = time.monotonic()
                if delta.text or delta.tokens:
                    yield delta
        except openai.APITimeoutError:
            raise EngineInterrupted(count, f"nothing came for {self._client._stall_timeout:.0f} s") from None
        except openai.APIConnectionError:
            raise EngineInterrupted(count, "the connection broke") from None
        except openai.APIError as error:
            raise EngineInterrupted(count, f"the engine reported: {error.message}") from None
        except json.JSONDecodeError:
            raise EngineInterrupted(count, "it sent unreadable data") from None
        if self.fold.finish_reason is None:
            raise EngineInterrupted(count, "the stream ended without a finish reason")


def _fold_for(request: GenerationRequest) -> StreamFold:
    if request.endpoint == "/v1/completions":
        return CompletionsFold(request.sampling.top_logprobs)
    return StreamFold()


class _Whole:
    """An answer that came in one piece, read as a stream of one chunk."""

    def __init__(self, reply: object) -> None:
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[object]:
        if not isinstance(self._reply, dict):
            yield self._reply
            return
        choices = self._reply.get("choices") or []
        yield self._reply | {"choices": [choice | {"delta": choice.get("message")} for choice in choices]}

    async def close(self) -> None:
        """Nothing is open."""


def _message_of(error: openai.APIStatusError) -> str:
    """The server's own sentence, without the JSON around it."""
    body = error.body
    if isinstance(body, dict):
        body = body.get("message") or (body.get("error") or {})
        if isinstance(body, dict):
            body = body.get("message")
    text = str(body or error.message).strip().splitlines()
    return text[0][:300] if text else f"HTTP {error.status_code}"
