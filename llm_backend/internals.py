"""What no HTTP API gives: the full logits and the attention weights behind a recorded answer.

The guide compares them between runs (its 5.2). Both are computed anew, by the engine's interpreter and
outside the running server, with the recorded tokens; the scripts in `offline/` say how and what that
does not show. A report compares several passes with the first one, and with one kept on an earlier day.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from llm_backend.config import Settings
from llm_backend.engine.launch import LaunchPlan
from llm_backend.engine.offline import OnStage, Script, run_offline
from llm_backend.engine.profiles import arguments
from llm_backend.errors import SettingsError
from llm_backend.inspection import AttentionReport, LogitsReport
from llm_backend.receipt import Receipt, known_logprob
from llm_backend.variant import Variant, plan_variant

MOST_POSITIONS = 32
"""Positions looked at: full logits of 200,064 tokens are 0.8 MB a position, and far more on their way."""

WHOLE_LOGITS = (("--logprobs-mode", "raw_logits"), ("--max-logprobs", "-1"))
"""With these vLLM returns logits, and of every token, where it would return a few logprobs."""

LONGEST_ATTENTION = 4096
"""Tokens: eager attention holds one layer's matrix of heads x tokens x tokens (1.6 GB for Phi-4-mini)."""


async def look_at_logits(
    settings: Settings,
    receipt: Receipt,
    *,
    last: int,
    save: Path | None,
    against: Path | None,
    on_stage: OnStage,
) -> LogitsReport:
    """Full logits at the `last` positions of the answer. Raises `SettingsError` or `LaunchError`."""
    plan = _plan(settings, receipt, save, against)
    job = _job(plan, receipt, last, save, against) | {
        "arguments": [*arguments(plan.table)],
        "greedy": receipt.request.sampling.greedy,
        "logprobs": [known_logprob(token.logprob) for token in receipt.completion.tokens],
    }
    return LogitsReport.model_validate(await _run("logits", job, plan, settings, on_stage))


async def look_at_attention(
    settings: Settings,
    receipt: Receipt,
    *,
    last: int,
    save: Path | None,
    against: Path | None,
    on_stage: OnStage,
) -> AttentionReport:
    """Attention weights at the `last` positions. Raises `SettingsError` or `LaunchError`."""
    length = len(receipt.request.prompt_token_ids) + len(receipt.completion.tokens)
    if length > LONGEST_ATTENTION:
        raise SettingsError(
            f"Prompt and answer have {length:,} tokens; attention weights are computed for up to "
            f"{LONGEST_ATTENTION:,}, because they grow with the square.",
            "Take a shorter run.",
        )
    plan = _plan(settings, receipt, save, against)
    job = _job(plan, receipt, last, save, against) | {
        "device": plan.device,
        "dtype": receipt.engine.dtype or "bfloat16",
    }
    return AttentionReport.model_validate(await _run("attention", job, plan, settings, on_stage))


def _plan(settings: Settings, receipt: Receipt, save: Path | None, against: Path | None) -> LaunchPlan:
    """The configured model and profile, if it is the recorded model; cheap refusals come first."""
    if not receipt.request.prompt_token_ids or not receipt.completion.tokens:
        raise SettingsError(
            "This receipt has no token ids of the prompt or no tokens in its answer.",
            "Only token ids can be looked at again; take a run whose engine reported them.",
        )
    if save is not None and save.exists():
        raise SettingsError(f"{save} exists already.", "Choose another name.")
    if against is not None and not against.is_file():
        raise SettingsError(f"There is no file {against}.", "Name one that --save wrote.")
    variant = Variant("internals", settings.profile, changes=WHOLE_LOGITS)
    plan = plan_variant(settings, variant, settings.run_dir / "internals", say=lambda _line: None)
    if plan.model.name != receipt.engine.model:
        raise SettingsError(
            f"The receipt was recorded with {receipt.engine.model}; the configured model is "
            f"{plan.model.name}.",
            "Set ENCORE_MODEL to the recorded model.",
        )
    return plan


def _job(
    plan: LaunchPlan, receipt: Receipt, last: int, save: Path | None, against: Path | None
) -> dict[str, Any]:
    return {
        "model": plan.model.location,
        "prompt": receipt.request.prompt_token_ids,
        "answer": [token.id for token in receipt.completion.tokens],
        "last": last,
        "receipt": receipt.digest,
        "save": str(save.absolute()) if save else None,
        "against": str(against.absolute()) if against else None,
    }


async def _run(
    script: Script, job: dict[str, Any], plan: LaunchPlan, settings: Settings, on_stage: OnStage
) -> dict[str, Any]:
    return await run_offline(
        script,
        job,
        interpreter=plan.interpreter,
        environ=plan.environ(os.environ),
        log=settings.run_dir / f"{script}.log",
        on_stage=on_stage,
    )
