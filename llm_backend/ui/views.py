"""What the panel and the run lines show, as JSON: numbers, ids, and sentences in the reader's language.

Everything is about one recorded run or one recorded comparison; nothing here looks at live state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_backend.compare import NEAR_TIE
from llm_backend.diagnose import Cause
from llm_backend.diff import diff_window
from llm_backend.distribution_phrases import distribution_sentences, strip_summary
from llm_backend.distributions import measure_distributions
from llm_backend.engine.profiles import explain
from llm_backend.phrases import (
    diagnosis_sentence,
    end_phrase,
    evidence_sentence,
    field_label,
    measurements,
    notes,
    run_end,
    run_summary,
    run_warning,
    short_digest,
    verdict_line,
    verdict_name,
)
from llm_backend.price import Bench
from llm_backend.price_phrases import profile_price, setting_price
from llm_backend.receipt import EngineFingerprint, GenerationRequest, Receipt, Sampling
from llm_backend.run import Run
from llm_backend.store import StoredComparison
from llm_backend.strings import Language, duration, text

_STRIP = (
    "model",
    "model_revision",
    "vllm_version",
    "device",
    "device_names",
    "cpu_model",
    "batch_invariant",
    "max_num_seqs",
    "prefix_caching",
    "tensor_parallel_size",
    "max_model_len",
)
"""The engine facts that are always in sight; the rest unfolds."""

_ALWAYS_SHOWN = (
    *("seed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("max_tokens", "top_logprobs"),
)
"""Sampling settings people set, and the penalty that models' own defaults like to bring; the others are
shown only when they differ from neutral."""


def run_item(run: Run, lang: Language) -> dict[str, Any]:
    """One run in a list."""
    return {
        "id": run.id,
        "kind": run.kind,
        "kind_label": text(f"run.kind.{run.kind}", lang),
        "question": run.question,
        "summary": run_summary(run, lang),
        "status": run.status,
        "verdict": run.verdict,
        "verdict_name": verdict_name(run.verdict, lang=lang) if run.verdict else None,
        "reference_run": run.reference_run_id,
        "digest": run.digest,
        "started_at": run.started_at.isoformat(),
    }


def replay_item(stored: StoredComparison, lang: Language) -> dict[str, Any]:
    """One replay in a list: its verdict in words."""
    line = verdict_line(stored.comparison, lang)
    return {
        "id": stored.id,
        "run": stored.candidate_run_id,
        "verdict": stored.verdict,
        "shape": line.shape,
        "title": line.title,
        "detail": line.detail,
        "reason": next(iter(_explanation(stored, lang)), ""),
        "at": stored.created_at.isoformat(),
    }


def run_view(
    run: Run,
    request: GenerationRequest,
    engine: EngineFingerprint,
    counts: Mapping[str, Any],
    lang: Language,
    bench: Bench | None = None,
) -> dict[str, Any]:
    """Everything the panel says about one run but what was found out about it later.

    `counts`: `cached_prompt_tokens` and `reported_tokens` of its completion.

    `bench`: what profiles were measured to cost here.
    """
    return {
        **run_item(run, lang),
        "seed": None if run.seed is None else str(run.seed),
        "greedy": run.greedy,
        "facts": _facts(run, counts, lang),
        "warning": run_warning(run.invalid_positions, lang),
        "duration_s": run.duration_s,
        "settings": _settings(request.sampling, request.effective, lang),
        "messages": [message.model_dump() for message in request.messages],
        "tokens": run.completion_tokens,
        "fingerprint": short_digest(engine.digest),
        "engine": _engine(engine, lang, bench),
    }


def comparison_view(
    stored: StoredComparison,
    reference: Receipt,
    candidate: Receipt,
    lang: Language,
    names: Mapping[int, str],
) -> dict[str, Any]:
    """One comparison: the verdict, why, the diff window, and what changed in the engine.

    `names`: display text of alternatives that neither side generated, by token id.
    """
    comparison = stored.comparison
    fork = comparison.first_divergence
    distributions = measure_distributions(reference, candidate, comparison)
    return {
        **replay_item(stored, lang),
        "reference_run": stored.reference_run_id,
        "compared": comparison.compared,
        "margin": fork.logprob_margin if fork else None,
        "sentences": [*_explanation(stored, lang), *measurements(comparison, lang)],
        "ends": {
            "reference": end_phrase(comparison.reference_end, lang),
            "candidate": end_phrase(comparison.candidate_end, lang),
        },
        "changes": [
            {
                "field": field_label("engine", change.field, lang),
                "reference": change.reference,
                "candidate": change.candidate,
                "relevance": change.relevance,
                "relevance_label": text(f"relevance.{change.relevance}", lang),
            }
            for change in comparison.engine_changes
        ],
        "window": diff_window(reference, candidate, comparison, names=names),
        "strip_summary": strip_summary(comparison, distributions, lang),
        "distributions": distribution_sentences(distributions, lang),
        "near_tie": NEAR_TIE,
    }


def _explanation(stored: StoredComparison, lang: Language) -> list[str]:
    """Why, and what a reader must know; the deciding sentence first, none said twice."""
    comparison, diagnosis = stored.comparison, stored.diagnosis
    said = notes(comparison, lang)
    if diagnosis.cause is Cause.TRUNCATED and said:
        return said  # the notes tell the same endings, together
    reason = diagnosis_sentence(diagnosis, lang)
    more = [evidence_sentence(evidence, lang) for evidence in diagnosis.evidence[1:]]
    return [sentence for sentence in (reason, *said, *more) if sentence]


def _facts(run: Run, counts: Mapping[str, Any], lang: Language) -> list[dict[str, str]]:
    cached_prompt_tokens, reported = counts["cached_prompt_tokens"], counts["reported_tokens"]
    tokens = None if run.completion_tokens is None else f"{run.completion_tokens:,}"
    if None not in (reported, run.completion_tokens) and reported != run.completion_tokens:
        tokens = text("receipt.lost_tokens", lang, tokens=run.completion_tokens, reported=reported)
    facts: list[tuple[str, str | None]] = [
        ("prompt_tokens", f"{run.prompt_tokens:,}" if run.prompt_tokens else None),
        ("cached_prompt_tokens", None if cached_prompt_tokens is None else f"{cached_prompt_tokens:,}"),
        ("completion_tokens", tokens),
        ("ttft", None if run.ttft_s is None else duration(run.ttft_s)),
        ("duration", None if run.duration_s is None else duration(run.duration_s)),
        ("neighbours", None if run.neighbours is None else str(run.neighbours)),
        ("end", end_phrase(run_end(run), lang)),
    ]
    shown = [
        {"key": key, "label": text(f"receipt.{key}", lang), "value": value or text("value.unknown", lang)}
        for key, value in facts
    ]
    if run.tokens_per_second is not None:
        speed = text("run.speed", lang, speed=run.tokens_per_second)
        shown.insert(3, {"key": "speed", "label": text("panel.speed", lang), "value": speed})
    return shown


def _settings(sent: Sampling, effective: Sampling, lang: Language) -> list[dict[str, Any]]:
    neutral = Sampling()
    names = [
        name
        for name in Sampling.model_fields
        if name in _ALWAYS_SHOWN or getattr(sent, name) != getattr(neutral, name)
    ]
    return [
        {
            "key": name,
            "label": text(f"sampling.{name}", lang),
            "sent": _setting(getattr(sent, name), lang),
            "effective": _setting(getattr(effective, name), lang),
            "changed": getattr(sent, name) != getattr(effective, name),
        }
        for name in names
    ]


def _setting(value: float | int | None, lang: Language) -> str:
    if value is None:
        return text("value.none", lang)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _engine(engine: EngineFingerprint, lang: Language, bench: Bench | None) -> dict[str, Any]:
    elsewhere = {"cuda": "cpu_model", "cpu": "device_names"}.get(engine.device or "")
    facts = [
        {
            "key": field,
            "label": field_label("engine", field, lang),
            "value": _known(getattr(engine, field), lang),
            "known": getattr(engine, field) not in (None, (), {}),
        }
        for field in EngineFingerprint.model_fields
        if field != elsewhere
    ]
    return {
        "model": engine.model,
        "profile": engine.profile,
        "facts": [fact for fact in facts if fact["key"] in _STRIP],
        "more": [fact for fact in facts if fact["key"] not in _STRIP and fact["known"]],
        # As launched, not as the profile would choose today; nothing for an engine Encore did not start.
        "profile_rows": [
            {
                "name": row.name,
                "value": row.value,
                "why": row.why,
                "source": row.source,
                "price": setting_price(bench, engine, row.name, row.value, lang),
            }
            for row in explain(engine.argv, engine.env)
        ],
        "price": profile_price(bench, engine, lang),
    }


def _known(value: object, lang: Language) -> str:
    match value:
        case None | () | {}:
            return text("value.not_told", lang)
        case bool():
            return text("value.yes" if value else "value.no", lang)
        case tuple():
            return ", ".join(str(entry) for entry in value)
        case dict():
            return ", ".join(f"{name}={setting}" for name, setting in sorted(value.items()))
    return str(value)
