"""Verify an engine: ask a suite (or take recorded answers), then try to get something else out of it.

The order is the one in which a reader would doubt: does it repeat itself, alone and among neighbours;
does it stand by its own probabilities; does it honour seeds; does watching it change anything; does a
new start give the same, does the engine of an earlier day; and is it still the engine it was? Every run
is recorded. `Acceptance.report` has what was found until now, also after it was cut short.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit, urlunsplit

from llm_backend import __version__
from llm_backend.check import Calibrations, check
from llm_backend.compare import compare
from llm_backend.diagnose import Evidence, diagnose
from llm_backend.engine.client import EngineClient
from llm_backend.engine_changes import EngineChange, engine_changes
from llm_backend.errors import EngineError, EngineNotReady, EngineRejected, LaunchError, PromptTooLong
from llm_backend.guards import ask_sample, cold_request, guard_replays
from llm_backend.probes import Guard
from llm_backend.receipt import EngineFingerprint, Receipt, content_digest
from llm_backend.record import build_request, record
from llm_backend.repeat import Repetition
from llm_backend.replay import replay
from llm_backend.seed_probe import probe_seed
from llm_backend.store import Run, Store
from llm_backend.tally import Progress
from llm_backend.verification import (
    Case,
    Doing,
    Finding,
    Kind,
    Outcome,
    Verification,
    judge_check,
    judge_comparisons,
    judge_guard,
    judge_identity,
    judge_probe,
    judge_step,
)
from llm_backend.verify_plan import Pace, Plan, Target

CHAT = "verify"
"""Everything a verification records belongs to this chat in `encore list` and the panel."""


class Acceptance:
    """One verification: `await acceptance.run()`; `acceptance.report` at any time."""

    def __init__(
        self,
        engine: EngineClient,
        store: Store,
        plan: Plan,
        identity: EngineFingerprint,
        calibrations: Calibrations,
        *,
        on_progress: Callable[[Doing], None] = lambda _: None,
    ) -> None:
        """`identity`: what the engine says it is now; it must still say so at the end."""
        self.receipts: dict[str, Receipt] = {}
        """The recorded answers by case, for a baseline."""
        self._engine = engine
        self._store = store
        self._plan = plan
        self._identity = identity
        self._calibrations = calibrations
        self._on_progress = on_progress
        self._runs: dict[str, Run] = {}
        self._cases: list[Case] = []
        self._findings: list[Finding] = []
        self._cut_short: Evidence | None = Evidence(key="verify.cut.stopped")
        self._started_at = datetime.now(UTC)
        self._clock = time.monotonic()
        answers = Counter({0: len(plan.targets) * (1 if isinstance(plan.relaunch, Evidence) else 2)})
        for count in plan.counts:
            answers[count] += plan.times * len(plan.targets)
        self._pace = Pace(answers)

    @property
    def report(self) -> Verification:
        """What was found until now."""
        plan = self._plan
        return Verification(
            suite=plan.suite,
            started_at=self._started_at,
            seconds=round(time.monotonic() - self._clock, 1),
            encore_version=__version__,
            engine=self._identity,
            engine_url=without_login(self._engine.url),
            level=plan.level,
            times=plan.times,
            counts=plan.counts,
            shape=plan.shape,
            chosen=plan.chosen,
            cases=tuple(self._cases),
            findings=tuple(self._findings),
            baseline=plan.baseline.recorded_at.isoformat() if plan.baseline else None,
            cut_short=self._cut_short,
        )

    async def run(self) -> Verification:
        """Measure everything that can be. An engine that fails ends it, and the report says so; so does
        cancelling, which is passed on. Raises what the store raises."""
        try:
            for number, target in enumerate(self._plan.targets, start=1):
                await self._case(target, number)
            await self._probe()
            await self._guard()
            await self._restart()
            self._baseline()
            await self._identify()
        except EngineError as error:
            self._cut_short = Evidence(key="verify.cut.engine", values={"said": error.diagnostics()})
            return self.report
        self._cut_short = None
        return self.report

    # -- one case ------------------------------------------------------------------------------------

    async def _case(self, target: Target, number: int) -> None:
        self._tell(Kind.ALONE, target.name, number)
        run = target.run or await self._ask(target)
        if run is None:
            self._pace.skip(0, 1)
            for count in self._plan.counts:
                self._pace.skip(count, self._plan.times)
            return
        receipt = await self._store.receipt_of(run.id)
        self._runs[target.name], self.receipts[target.name] = run, receipt
        self._cases.append(_described(target, receipt))
        for count in self._plan.counts:
            await self._repeat(target.name, number, run, count)
        await self._instant(target.name, number, receipt)

    async def _ask(self, target: Target) -> Run | None:
        """Record the answer that the replays are held against; None when it does not fit this engine."""
        model, context = self._identity.model, self._identity.max_model_len
        request = build_request(model, target.messages, target.sampling)
        prompt = await self._engine.prompt_tokens(model, target.messages)
        if prompt is not None and context is not None and prompt + target.sampling.max_tokens > context:
            self._skip(target, prompt, context)
            return None
        began = time.monotonic()
        recording = record(self._engine, self._store, request, chat_id=CHAT)
        try:
            async with recording:
                async for _ in recording:
                    pass
        except PromptTooLong:
            self._skip(target, prompt, context)
            return None
        self._pace.done(0, time.monotonic() - began)
        return recording.run

    def _skip(self, target: Target, prompt: int | None, context: int | None) -> None:
        values = {"prompt": prompt, "answer": target.sampling.max_tokens, "context": context}
        skipped = Evidence(key="verify.skipped", values=dict(values))
        self._cases.append(_described(target, None).model_copy(update={"skipped": skipped}))

    async def _repeat(self, name: str, number: int, run: Run, count: int) -> None:
        kind = Kind.LOAD if count else Kind.ALONE
        repetition = Repetition(
            self._engine,
            self._store,
            run,
            times=self._plan.times,
            counts=(count,),
            shape=self._plan.shape,
            chat_id=CHAT,
            on_progress=lambda now: self._tell(kind, name, number, now),
            calibrations=self._calibrations,
        )
        began = time.monotonic()
        try:
            await repetition.run()
        finally:
            seconds = time.monotonic() - began
            for step in repetition.report.steps:  # one at most; a broken-off one has what was measured
                for _ in step.repeats:
                    self._pace.done(count, seconds / len(step.repeats))
                plan = self._plan
                outcome, why = judge_step(step, self._identity, times=plan.times, level=plan.level)
                self._findings.append(
                    Finding(
                        kind=kind,
                        outcome=outcome,
                        case=name,
                        neighbours=count,
                        seconds=_shown(seconds),
                        evidence=why,
                        step=step,
                    )
                )

    async def _instant(self, name: str, number: int, receipt: Receipt) -> None:
        self._tell(Kind.INSTANT, name, number)
        began = time.monotonic()
        finding = Finding(kind=Kind.INSTANT, outcome=Outcome.UNDECIDED, case=name)
        try:
            result = await check(self._engine, receipt, self._calibrations)
            finding = finding.model_copy(update={"outcome": judge_check(result), "check": result})
        except (EngineRejected, EngineNotReady) as error:
            why = Evidence(key="verify.refused", values={"said": error.diagnostics()})
            finding = finding.model_copy(update={"evidence": (why,)})
        seconds = _shown(time.monotonic() - began)
        self._findings.append(finding.model_copy(update={"seconds": seconds}))

    # -- the engine ----------------------------------------------------------------------------------

    async def _probe(self) -> None:
        self._tell(Kind.SEED)
        began = time.monotonic()
        probe = await probe_seed(self._engine, self._store, chat_id=CHAT)
        seconds = _shown(time.monotonic() - began)
        finding = Finding(kind=Kind.SEED, outcome=judge_probe(probe), seconds=seconds, probe=probe)
        self._findings.append(finding)

    async def _guard(self) -> None:
        """On an answer long enough that most of its prompt can come from the cache."""
        self._tell(Kind.OBSERVER)
        began = time.monotonic()
        try:
            reference = await ask_sample(self._engine, self._store, chat_id=CHAT)
            guards = await guard_replays(self._engine, self._store, reference, chat_id=CHAT)
        except EngineRejected as error:  # a context too small for the sample
            why = Evidence(key="verify.refused", values={"said": error.diagnostics()})
            self._note(Kind.OBSERVER, Outcome.UNDECIDED, why)
            self._note(Kind.CACHE, Outcome.UNDECIDED, why)
            return
        seconds = _shown(time.monotonic() - began)
        for kind, guard in zip((Kind.OBSERVER, Kind.CACHE), guards, strict=True):
            self._findings.append(self._guarded(kind, guard, seconds / 2))

    def _guarded(self, kind: Kind, guard: Guard, seconds: float) -> Finding:
        outcome = judge_guard(guard, self._plan.level)
        return Finding(kind=kind, outcome=outcome, seconds=_shown(seconds), guard=guard)

    def _baseline(self) -> None:
        """Today's answers against those of an earlier day."""
        if (baseline := self._plan.baseline) is None:
            return
        for name, receipt in self.receipts.items():
            recorded = baseline.find(name)
            if recorded is None:
                self._note(Kind.BASELINE, Outcome.UNDECIDED, Evidence(key="verify.baseline.missing"), name)
                continue
            comparison = compare(recorded, receipt)
            outcome, why = judge_comparisons([comparison], self._plan.level)
            self._findings.append(
                Finding(
                    kind=Kind.BASELINE,
                    outcome=outcome,
                    case=name,
                    evidence=why,
                    comparison=comparison,
                    diagnosis=diagnose(comparison, recorded, receipt, neighbours=None),
                    changes=comparison.engine_changes,
                )
            )
        if unasked := {case.name for case in baseline.cases} - self.receipts.keys():
            note = Evidence(key="verify.baseline.unasked", values={"n": len(unasked)})
            self._note(Kind.BASELINE, Outcome.NOT_APPLICABLE, note)

    async def _restart(self) -> None:
        """Every recorded answer once more, on a second engine of the same plan."""
        relaunch = self._plan.relaunch
        if isinstance(relaunch, Evidence):
            self._note(Kind.RESTART, Outcome.NOT_APPLICABLE, relaunch)
            return
        self._tell(Kind.RESTART)
        try:
            async with relaunch() as second:
                await self._cold(second)
                changes = engine_changes(self._identity, await second.identity(), seeded=True)
                for number, (name, run) in enumerate(self._runs.items(), start=1):
                    self._tell(Kind.RESTART, name, number)
                    await self._replay_on(second, name, run, changes)
        except (LaunchError, EngineError) as error:
            failed = Evidence(key="verify.restart.failed", values={"said": error.diagnostics()})
            self._note(Kind.RESTART, Outcome.UNDECIDED, failed)

    async def _cold(self, second: EngineClient) -> None:
        """The first request a new engine gets, against the same one when it is warm."""
        if not self.receipts:
            return
        self._tell(Kind.COLD)
        began = time.monotonic()
        request = next(iter(self.receipts.values())).request
        guard = await cold_request(second, self._store, request, chat_id=CHAT)
        self._findings.append(self._guarded(Kind.COLD, guard, time.monotonic() - began))

    async def _replay_on(
        self, second: EngineClient, name: str, run: Run, changes: tuple[EngineChange, ...]
    ) -> None:
        began = time.monotonic()
        result = await replay(second, self._store, run, chat_id=CHAT)
        seconds = time.monotonic() - began
        self._pace.done(0, seconds)
        outcome, why = judge_comparisons([result.comparison], self._plan.level)
        if any(change.relevance == "bit-relevant" for change in changes):
            # Another engine than the one verified: whatever came back says nothing about a restart.
            outcome, why = Outcome.UNDECIDED, (Evidence(key="verify.restart.other"),)
        self._findings.append(
            Finding(
                kind=Kind.RESTART,
                outcome=outcome,
                seconds=_shown(seconds),
                case=name,
                evidence=why,
                comparison=result.comparison,
                diagnosis=result.diagnosis,
                changes=changes,
            )
        )

    async def _identify(self) -> None:
        now = await self._engine.identity()
        changes = engine_changes(self._identity, now, seeded=True)
        outcome, why = judge_identity(self._identity, now, changes)
        if outcome is Outcome.UNDECIDED and self._plan.anonymous:
            outcome = Outcome.NOT_APPLICABLE
        self._findings.append(Finding(kind=Kind.IDENTITY, outcome=outcome, evidence=why, changes=changes))

    # -- bookkeeping ---------------------------------------------------------------------------------

    def _note(self, kind: Kind, outcome: Outcome, why: Evidence, case: str | None = None) -> None:
        self._findings.append(Finding(kind=kind, outcome=outcome, evidence=(why,), case=case))

    def _tell(
        self, kind: Kind, case: str | None = None, number: int = 0, repeats: Progress | None = None
    ) -> None:
        cases = len(self._plan.targets)
        self._on_progress(Doing(kind, case, number, cases, repeats, self._pace.left()))


def without_login(url: str) -> str:
    """A report is passed around; the user name and password of an address are not for it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _shown(seconds: float) -> float:
    """Milliseconds are as fine as anybody reads them."""
    return round(seconds, 3)


def _described(target: Target, receipt: Receipt | None) -> Case:
    case = Case(
        name=target.name,
        question=target.messages[-1].content,
        greedy=target.sampling.greedy,
        seed=target.sampling.seed,
        temperature=target.sampling.temperature,
    )
    if receipt is None:
        return case
    tokens = receipt.completion.tokens
    return case.model_copy(
        update={
            "prompt_tokens": len(receipt.request.prompt_token_ids) or None,
            "answer_tokens": len(tokens),
            "digest": receipt.digest,
            "tokens_digest": content_digest([token.id for token in tokens]),
            "logprobs_digest": content_digest([[token.id, token.logprob] for token in tokens]),
        }
    )
