"""Verdicts, measurements and explanations in sentences: the only place that words a `Comparison`.

Positions are said as they are stored, 0-based: "different from token 31 on" is position 31, the same
number that receipts, JSON and the panel use. Tokens are shown quoted, with anything invisible escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_backend.compare import Comparison, Fork, Verdict
from llm_backend.diagnose import Cause, Diagnosis, Evidence
from llm_backend.reasons import TEXT_ONLY, Reason
from llm_backend.receipt import Sampling, TokenRecord
from llm_backend.run import Run
from llm_backend.scoring import MARGIN, Check, CheckVerdict
from llm_backend.strings import Language, text
from llm_backend.token_text import quoted, token_texts

SHAPES = {
    Verdict.IDENTICAL: "●",
    Verdict.DRIFTED: "◐",
    Verdict.DIVERGED: "✕",
    Verdict.INCOMPARABLE: "?",
}
"""A verdict is told by a shape and words, never by colour alone."""

CHECK_SHAPES = {
    CheckVerdict.BIT_EXACT: "●",
    CheckVerdict.WITHIN_TOLERANCE: "◐",
    CheckVerdict.OUTSIDE: "✕",
    CheckVerdict.UNCHECKABLE: "?",
}

_ENDS = ("stop", "length", "stopped", "interrupted", "running", "unknown")


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """A verdict for people: `● Came out the same — 312 of 312 tokens, probabilities bit-equal.`"""

    shape: str
    title: str
    detail: str
    whole: str

    def __str__(self) -> str:
        return self.whole


def verdict_line(comparison: Comparison, lang: Language = "en") -> VerdictLine:
    """The one line under an answer, in a list, or on top of a report."""
    key = f"verdict.{comparison.verdict.value.lower()}"
    fork = comparison.first_divergence
    if fork:
        title, detail = text(key, lang, position=fork.position), _fork_detail(fork, lang)
    elif comparison.verdict is Verdict.DRIFTED:
        largest, first = comparison.max_abs_logprob_diff, comparison.first_drift
        title, detail = text(key, lang), text(f"{key}.detail", lang, largest=largest, first=first)
    elif comparison.verdict is Verdict.IDENTICAL:
        beyond = comparison.partial and comparison.reference_length != comparison.candidate_length
        title = text(f"{key}.partial" if beyond else key, lang)
        detail = _identical_detail(comparison, key, lang)
    else:
        reasons = (reason_phrase(reason, lang) for reason in comparison.reasons)
        title, detail = text(key, lang), text("verdict.and", lang).join(reasons)
    shape = SHAPES[comparison.verdict]
    whole = text("verdict.line", lang, shape=shape, title=title, detail=detail)
    return VerdictLine(shape, title, detail, whole)


def verdict_name(verdict: str, position: int | None = None, lang: Language = "en") -> str:
    """Shape and title where only the verdict is known; lists have no position to give."""
    name = Verdict(verdict)
    key = f"verdict.{name.value.lower()}"
    if name is Verdict.DIVERGED and position is None:
        key = "verdict.diverged.short"
    return f"{SHAPES[name]} {text(key, lang, position=position)}"


def reason_phrase(reason: Reason, lang: Language = "en") -> str:
    """Why two receipts cannot be compared, as part of a sentence."""
    key = f"reason.{reason.kind}"
    if reason.kind == "other_prompt" and reason.position is None:
        key = "reason.other_messages"
    return text(key, lang, **reason.model_dump(exclude={"kind"}))


def measurements(comparison: Comparison, lang: Language = "en") -> list[str]:
    """What was measured, one sentence each: margin, drift, and what each side thought of the other."""
    said: list[str] = []
    fork = comparison.first_divergence
    if fork:
        if fork.logprob_margin is not None:
            said.append(text("measure.margin", lang, margin=fork.logprob_margin))
        if fork.reference_on_candidate is not None:
            said.append(text("measure.reference_there", lang, p=fork.reference_on_candidate))
        if fork.candidate_on_reference is not None:
            said.append(text("measure.candidate_there", lang, p=fork.candidate_on_reference))
    drift = {
        "largest": comparison.max_abs_logprob_diff,
        "mean": comparison.mean_abs_logprob_diff,
        "at": comparison.largest_drift,
        "first": comparison.first_drift,
        "drifted": comparison.drifted_positions,
        "compared": comparison.compared - comparison.unknown_logprobs,
    }
    if comparison.drifted_positions:
        said.append(text("measure.drift_before" if fork else "measure.drift", lang, **drift))
        if comparison.largest_drift is not None and not (fork and drift["at"] == drift["first"]):
            said.append(text("measure.largest", lang, **drift))
    elif fork and comparison.level == "logprobs":
        said.append(text("measure.no_drift_before", lang, **drift))
    return said


def notes(comparison: Comparison, lang: Language = "en") -> list[str]:
    """What a reader must know to read the verdict right: cut runs, unknown values, other endings."""
    return list(_notes(comparison, lang))


def check_line(check: Check, lang: Language = "en") -> VerdictLine:
    """`◐ Plausible: within tolerance — 512 positions, at most 0.216 nats off, tolerance 0.512 nats.`"""
    key = f"check.{check.verdict.value.lower()}"
    if check.verdict is CheckVerdict.UNCHECKABLE:
        detail = text("verdict.and", lang).join(reason_phrase(reason, lang) for reason in check.reasons)
    else:
        detail = text(f"{key}.detail", lang, **_check_values(check))
    shape, title = CHECK_SHAPES[check.verdict], text(key, lang, first=check.first_outside)
    return VerdictLine(
        shape, title, detail, text("verdict.line", lang, shape=shape, title=title, detail=detail)
    )


def check_sentences(check: Check, lang: Language = "en") -> list[str]:
    """What was measured, what the tolerance rests on, and what the verdict does not say."""
    return [text(f"check.{key}", lang, **_check_values(check)) for key in _check_keys(check)]


def end_phrase(end: str, lang: Language = "en") -> str:
    """How a run ended, in words: an engine's finish reason, or a status that is not `complete`."""
    return text(f"end.{end}", lang) if end in _ENDS else text("end.other", lang, reason=end)


def evidence_sentence(evidence: Evidence, lang: Language = "en") -> str:
    values = dict(evidence.values)
    if "field" in values:
        group = "engine" if evidence.key == "evidence.engine" else "sampling"
        values["field"] = field_label(group, str(values["field"]), lang)
    if evidence.key in ("evidence.request", "evidence.observation"):
        values |= {
            side: text("value.not_sent", lang) for side in ("reference", "candidate") if values[side] is None
        }
    if "end" in values:
        values["end"] = end_phrase(str(values["end"]), lang)
    return text(evidence.key, lang, **values)


def diagnosis_sentence(diagnosis: Diagnosis, lang: Language = "en") -> str:
    """The reason in one sentence, empty when there is nothing to explain."""
    if diagnosis.cause is Cause.NONE:
        return ""
    sentence = evidence_sentence(diagnosis.evidence[0], lang) if diagnosis.evidence else ""
    if diagnosis.cause is Cause.UNEXPLAINED:
        return text("diagnosis.unexplained", lang, evidence=sentence).strip()
    return sentence


def field_label(group: str, field: str, lang: Language = "en") -> str:
    """A field of `Sampling` ("sampling") or `EngineFingerprint` ("engine") for people.

    Environment variables, flags and other keys of a request's body keep the names that they are sent under.
    """
    for group_of_names in ("env.", "argv."):
        if field.startswith(group_of_names):
            return field.removeprefix(group_of_names)
    if group == "sampling" and field not in Sampling.model_fields:
        return field
    return text(f"{group}.{field}", lang)


def run_summary(run: Run, lang: Language = "en") -> str:
    """The quiet line under an answer: `seed 42 · greedy · 312 tokens · 28.0 tok/s · 7c19e0`."""
    digest = [short_digest(run.digest, 6)] if run.digest else []
    return " · ".join([run_settings(run, lang), *digest])


def run_settings(run: Run, lang: Language = "en") -> str:
    """How a run was sampled, how much it gave and how fast; how it ended unless by itself."""
    parts = [
        text("run.no_seed", lang) if run.seed is None else text("run.seed", lang, seed=run.seed),
        text("run.greedy" if run.greedy else "run.sampled", lang),
    ]
    if run.completion_tokens is not None:
        parts.append(text("run.tokens", lang, n=run.completion_tokens))
    if run.tokens_per_second is not None:
        parts.append(text("run.speed", lang, speed=run.tokens_per_second))
    if run_end(run) != "stop":
        parts.append(end_phrase(run_end(run), lang))
    if run.invalid_positions:
        parts.append(text("run.invalid", lang))
    return " · ".join(parts)


def run_warning(invalid_positions: int | None, lang: Language = "en") -> str:
    """What is wrong with the engine's output itself; empty for an ordinary run."""
    return text("warning.invalid_output", lang, n=invalid_positions) if invalid_positions else ""


def run_end(run: Run) -> str:
    """For `end_phrase`."""
    return (run.finish_reason or "unknown") if run.status == "complete" else run.status


def short_digest(digest: str, length: int = 12) -> str:
    """Enough of a digest to find the receipt again."""
    return digest.removeprefix("sha256:")[:length]


def _identical_detail(comparison: Comparison, key: str, lang: Language) -> str:
    known = comparison.compared - comparison.unknown_logprobs
    if comparison.level == "tokens":
        key += ".tokens"
    else:
        key += ".some_bits" if comparison.unknown_logprobs else ".bits"
    recorded = comparison.reference_length
    return text(key, lang, compared=comparison.compared, recorded=recorded, known=known)


def _fork_detail(fork: Fork, lang: Language) -> str:
    sides = {
        "reference": _fork_token(fork.reference, fork.reference_probability, lang),
        "candidate": _fork_token(fork.candidate, fork.candidate_probability, lang),
    }
    if fork.near_tie:
        tie = text("fork.exact_tie" if fork.exact_tie else "fork.near_tie", lang)
        return text("verdict.diverged.tie", lang, tie=tie, **sides)
    return text("verdict.diverged.detail", lang, **sides)


def _fork_token(token: TokenRecord | None, probability: float | None, lang: Language) -> str:
    if token is None:
        return text("fork.ended", lang)
    shown = quoted(token_texts([token])[0])
    if probability is None:
        return shown
    return text("fork.token", lang, token=shown, p=probability)


def _notes(comparison: Comparison, lang: Language) -> Iterator[str]:
    recorded, replayed = comparison.reference_end, comparison.candidate_end
    at_limit = recorded == replayed == "length"
    if comparison.reproduced and at_limit and comparison.reference_length == comparison.candidate_length:
        yield text("note.both_at_limit", lang)
    elif comparison.partial:
        for side, end, length in (
            ("recorded", recorded, comparison.reference_length),
            ("replayed", replayed, comparison.candidate_length),
        ):
            if end in ("stopped", "interrupted", "length"):
                yield text(f"note.cut_{side}", lang, end=end_phrase(end, lang), n=length)
    elif comparison.reproduced and recorded != replayed:
        ends = {"reference": end_phrase(recorded, lang), "candidate": end_phrase(replayed, lang)}
        yield text("note.ends_differ", lang, **ends)
    if comparison.level == "logprobs" and comparison.unknown_logprobs:
        yield text("note.unknown_logprobs", lang, n=comparison.unknown_logprobs)
    if comparison.engine_restarted:
        yield text("note.restarted", lang)
    modes = {change.field: change for change in comparison.engine_changes}.get("logprobs_mode")
    if modes and modes.relevance == "bit-relevant" and comparison.verdict is not Verdict.INCOMPARABLE:
        yield text("note.logprobs_mode", lang)
    if comparison.verdict is Verdict.IDENTICAL and comparison.first_alternative_drift is not None:
        yield text("note.alternatives", lang, position=comparison.first_alternative_drift)
    if any(reason.kind in TEXT_ONLY for reason in comparison.reasons):
        key = "note.by_text_same" if comparison.same_text else "note.by_text_other"
        yield text(key, lang, position=comparison.text_divergence)
    elif comparison.verdict is Verdict.DIVERGED and comparison.same_text:
        yield text("note.same_text", lang)


def _check_values(check: Check) -> dict[str, float | int | None]:
    first = check.positions[check.first_outside] if check.first_outside is not None else None
    calibration = check.calibration
    return {
        "known": check.known,
        "unknown": check.unknown,
        "equal": check.bit_equal,
        "most_likely": check.most_likely,
        "total": len(check.positions),
        "share": check.most_likely / len(check.positions) if check.positions else None,
        "largest": check.max_abs_logprob_diff,
        "mean": check.mean_abs_logprob_diff,
        "tolerance": check.tolerance,
        "outside": check.outside,
        "difference": abs(first.difference) if first and first.difference is not None else None,
        "gap": first.gap if first else None,
        "margin": MARGIN,
        "self_positions": calibration.positions if calibration else None,
        "self_largest": calibration.largest if calibration else None,
    }


def _check_keys(check: Check) -> Iterator[str]:
    if check.verdict is CheckVerdict.UNCHECKABLE:
        return
    yield "most_likely"
    if check.verdict is not CheckVerdict.BIT_EXACT:
        yield "differences"
    if check.calibration:
        yield "calibration" if check.calibration.largest else "calibration_exact"
    if check.verdict is CheckVerdict.WITHIN_TOLERANCE:
        yield "plausible"
    if not check.must_be_most_likely:
        yield "sampled"
    if check.unknown:
        yield "unknown"
