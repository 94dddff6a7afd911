"""A fixed acceptance report with something of everything, hostile prompts included.

The files in `tests/golden/` are what it looks like. After a wanted change of the reports,

    python tests/sample_verification.py

writes them anew; open `verification.en.html` in a browser before committing it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sample_receipts import engine, receipt, request, token

from llm_backend.compare import compare
from llm_backend.diagnose import Evidence, diagnose
from llm_backend.receipt import EngineFingerprint, Receipt, TokenRecord
from llm_backend.scoring import Calibration, CheckedPosition, judge
from llm_backend.strings import Language
from llm_backend.tally import LoadSeen, Outputs, Repeat, Shape, Step
from llm_backend.verification import (
    Case,
    Finding,
    Kind,
    Outcome,
    Verification,
    judge_check,
    judge_comparisons,
    judge_step,
)
from llm_backend.verify_html import verification_html
from llm_backend.verify_render import verification_junit, verification_markdown

GOLDEN = Path(__file__).parent / "golden"

HOSTILE = "</pre><script>alert('x')</script>\n<img src=x onerror=alert(1)> ]]> & \u202e\x1b[31m\x00 {{ 7*7 }}"
"""HTML, an XML ending, a direction override, a terminal escape, a null byte, a template expression."""

ENGINE = engine(
    tokenizer_digest="sha256:tokenizer",
    chat_template_digest="sha256:template",
    torch_version="2.11.0",
    cuda_version="13.0",
    driver_version="580.65.06",
    device="cuda",
    device_names=("NVIDIA H200",),
    profile="fast",
    argv=("--seed", "42", "--max-model-len", "32768", "--no-enable-prefix-caching"),
    dtype="bfloat16",
    max_model_len=32768,
    tensor_parallel_size=1,
    attention_backend="TRITON_ATTN",
    enforce_eager=False,
    prefix_caching=False,
)


def step(recorded: Receipt, replays: Sequence[Receipt], asked: int = 0, *, seen: float | None = None) -> Step:
    """Replays of `recorded` among `asked` neighbours, all of them seen unless `seen` says how many."""
    most = round(asked if seen is None else seen)
    load = LoadSeen(
        asked=asked,
        shape=Shape.MIXED if asked else None,
        least=most,
        most=most,
        mean=asked if seen is None else seen,
        running=most,
    )
    outputs, repeats = Outputs(recorded), []
    for number, replayed in enumerate(replays):
        comparison = compare(recorded, replayed)
        if not comparison.reasons:
            outputs.add(replayed.completion)
        diagnosis = diagnose(comparison, recorded, replayed, neighbours=load.running)
        repeats.append(
            Repeat(run_id=str(number), digest=replayed.digest, comparison=comparison, diagnosis=diagnosis)
        )
    return Step(load=load, repeats=tuple(repeats), fork=outputs.fork())


def repeats(
    name: str, recorded: Receipt, replays: Sequence[Receipt], asked: int = 0, *, seen: float | None = None
) -> Finding:
    measured = step(recorded, replays, asked, seen=seen)
    outcome, why = judge_step(measured, ENGINE, times=len(replays), level="logprobs")
    return Finding(
        kind=Kind.LOAD if asked else Kind.ALONE,
        outcome=outcome,
        case=name,
        neighbours=asked,
        seconds=1.25 * len(replays),
        evidence=why,
        step=measured,
    )


def answer(
    *, fork_at: int | None = None, drift: float = 0.0, length: int = 60, other: int = 900, **asked: object
) -> Receipt:
    """An answer whose tokens and logprobs are functions of the position, with a fork and drift on demand."""
    records: list[TokenRecord] = []
    for position in range(length):
        forked = fork_at is not None and position >= fork_at
        id = other + position if forked else 100 + position
        logprob = -0.25 - position % 7 / 8 + (drift if position >= 4 and not forked else 0.0)
        records.append(token(id, logprob, text=f" w{id}", top={id: logprob, 100 + position: -0.25}))
    if fork_at is not None:
        records[fork_at] = token(other + fork_at, -0.5, text="<b>", top={other + fork_at: -0.5})
    return receipt(tuple(records), asked=request(**asked), engine=ENGINE)


def instant(name: str, recorded: Receipt, *, off: float) -> Finding:
    positions = [CheckedPosition(off * (n % 5) / 4, 0.0, 1) for n in range(len(recorded.completion.tokens))]
    calibration = Calibration(engine=ENGINE.digest, positions=128, largest=0.11) if off else None
    checked = judge(recorded, ENGINE, positions, calibration)
    return Finding(kind=Kind.INSTANT, outcome=judge_check(checked), case=name, seconds=0.2, check=checked)


def baseline(name: str, today: Receipt, before: EngineFingerprint) -> Finding:
    recorded = today.model_copy(update={"engine": before})
    comparison = compare(recorded, today)
    outcome, why = judge_comparisons([comparison], "logprobs")
    return Finding(
        kind=Kind.BASELINE,
        outcome=outcome,
        case=name,
        evidence=why,
        comparison=comparison,
        diagnosis=diagnose(comparison, recorded, today, neighbours=None),
        changes=comparison.engine_changes,
    )


def case(name: str, question: str, recorded: Receipt) -> Case:
    sampling = recorded.request.sampling
    return Case(
        name=name,
        question=question,
        greedy=sampling.greedy,
        seed=sampling.seed,
        temperature=sampling.temperature,
        prompt_tokens=len(recorded.request.prompt_token_ids),
        answer_tokens=len(recorded.completion.tokens),
        digest=recorded.digest,
        tokens_digest="sha256:tokens",
        logprobs_digest="sha256:logprobs",
    )


def fixed_report(**changed: object) -> Verification:
    """Everything a report can hold; `changed` replaces fields of it."""
    product, drawn, hostile = answer(), answer(temperature=0.8, length=44), answer(question=HOSTILE)
    forks = [answer(fork_at=31), answer(fork_at=31), answer(fork_at=31, other=700), product]
    findings = (
        repeats("product-en/greedy", product, [product] * 4),
        repeats("product-en/greedy", product, [product] * 4, 7),
        repeats("product-en/greedy", product, forks, 31),
        instant("product-en/greedy", product, off=0.09),
        repeats("product-zh/seeded", drawn, [drawn] * 4),
        repeats(
            "product-zh/seeded", drawn, [answer(temperature=0.8, length=44, drift=0.03)] * 2 + [drawn] * 2, 7
        ),
        repeats("product-zh/seeded", drawn, [drawn] * 4, 31, seen=2.0),
        instant("product-zh/seeded", drawn, off=0.0),
        repeats("hostile/greedy", hostile, [hostile] * 4),
        repeats("hostile/greedy", hostile, [answer(question=HOSTILE, fork_at=12)] * 4, 7),
        repeats("hostile/greedy", hostile, [hostile] * 4, 31),
        baseline("product-en/greedy", product, ENGINE.model_copy(update={"vllm_version": "0.25.1"})),
        Finding(
            kind=Kind.RESTART,
            outcome=Outcome.NOT_APPLICABLE,
            evidence=(Evidence(key="verify.restart.not_ours"),),
        ),
        Finding(
            kind=Kind.IDENTITY,
            outcome=Outcome.PASSED,
            evidence=(Evidence(key="verify.identity.told", values={"told": 19, "asked": 19}),),
        ),
    )
    skipped = Evidence(key="verify.skipped", values={"prompt": 40000, "answer": 128, "context": 32768})
    long = Case(
        name="stock-long-en/greedy",
        question="Here is the ledger of a warehouse.",
        greedy=True,
        seed=42,
        temperature=0.0,
        skipped=skipped,
    )
    report = Verification(
        suite="maths",
        started_at=datetime(2026, 12, 1, 6, 30, tzinfo=UTC),
        seconds=312.4,
        encore_version="0.1.0",
        engine=ENGINE,
        engine_url="http://127.0.0.1:8100",
        level="logprobs",
        times=4,
        counts=(0, 7, 31),
        shape=Shape.MIXED,
        chosen=Evidence(key="verify.chosen.you", values={"times": 4, "counts": "0, 7, 31"}),
        cases=(
            case("product-en/greedy", "What is 235 times 478?", product),
            case("product-zh/seeded", "请计算235乘以478的结果是多少？", drawn),
            case("hostile/greedy", HOSTILE, hostile),
            long,
        ),
        findings=findings,
        baseline="2026-11-30T06:30:00+00:00",
    )
    return report.model_copy(update=changed)


def files() -> Mapping[str, str]:
    """Name and content of every golden file."""
    languages: tuple[Language, ...] = ("en", "zh-CN")
    report = fixed_report()
    return {
        **{f"verification.{lang}.html": verification_html(report, lang) for lang in languages},
        "verification.xml": verification_junit(report) + "\n",
        "verification.md": verification_markdown(report) + "\n",
    }


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, content in files().items():
        (GOLDEN / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
