"""`/engines`: the engines a run can be replayed on, for the panel's choice. No addresses: only numbers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header

from llm_backend.engine_pool import Member
from llm_backend.strings import Language, pick_language, text
from llm_backend.ui.backend import backend

router = APIRouter()


@router.get("/engines")
async def engines(accept_language: Annotated[str | None, Header()] = None) -> list[dict[str, Any]]:
    """Every configured engine as it was seen within the last second, in the order of ENCORE_ENGINE_URLS."""
    lang = pick_language(accept_language)
    return [_item(member, lang) for member in await backend().engines.look()]


def engine_number(url: str) -> int | None:
    """What pages call the engine at `url`; None for one that is not configured any more."""
    numbers = {member.client.url: member.number for member in backend().engines.members}
    return numbers.get(url)


def _item(member: Member, lang: Language) -> dict[str, Any]:
    return {
        "number": member.number,
        "name": _name(member, lang),
        "ready": member.ready,
        "state": text(f"engines.state.{_state(member)}", lang),
        "same_class": member.same_class,
        "fingerprint": member.identity.digest if member.identity else None,
        "running": member.running,
    }


def _state(member: Member) -> str:
    if not member.ready:
        return "loading" if member.state.kind == "loading" else "away"
    return "serving" if member.same_class else "other"


def _name(member: Member, lang: Language) -> str:
    """ "Engine 2 · NVIDIA H200 · vLLM 0.26.0", as far as it tells."""
    told = [text("engines.name", lang, n=member.number)]
    if (identity := member.identity) is not None:
        told += [device for device in (identity.device_names[:1] or (identity.cpu_model,)) if device]
        told += [f"vLLM {identity.vllm_version}"] if identity.vllm_version else []
    return " · ".join(told)
