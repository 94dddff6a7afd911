"""One thing changed at a time until the result flips: what the replays of each rung amount to.

Two questions are kept apart. Does a rung's answer *repeat with itself*? And is it *equal* to the recorded
one and to its baseline, the same engine with nothing changed? An engine in float32 computes another
function: it differs always and repeats always, which is not the same as being random.

Nothing is ever excluded: equal replays support a share (`tally.wilson_lower`), no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import Field

from llm_backend.compare import Comparison, Verdict
from llm_backend.diagnose import Diagnosis
from llm_backend.receipt import Frozen
from llm_backend.tally import LoadSeen, wilson_lower


class Rung(StrEnum):
    """What is changed. The order is the order of the ladder."""

    ALONE = "alone"
    """Nothing: the recorded request again, the baseline of the engine that runs."""
    LOADED = "loaded"
    CACHE_COLD = "cache_cold"
    CACHE_WARM = "cache_warm"
    LOGPROBS = "logprobs"
    STREAM = "stream"
    SAMPLING = "sampling"
    """Greedy instead of sampled, or the reverse."""
    SEED = "seed"
    """Another seed; a seed where none was sent."""
    RESTART = "restart"
    """Nothing but a new start: the baseline of the engines Encore starts itself."""
    PREFIX_CACHING = "prefix_caching"
    MAX_NUM_SEQS = "max_num_seqs"
    DTYPE = "dtype"
    EAGER = "eager"
    BATCH_INVARIANCE = "batch_invariance"
    ATTENTION_BACKEND = "attention_backend"
    TENSOR_PARALLEL = "tensor_parallel"


LIVE = tuple(Rung)[: tuple(Rung).index(Rung.RESTART)]
"""Rungs on the engine that runs."""

OWN = tuple(Rung)[tuple(Rung).index(Rung.RESTART) :]
"""Rungs that need an engine of Encore's own each."""

BASELINES = (Rung.ALONE, Rung.RESTART)


class Finding(StrEnum):
    """What a rung showed."""

    REPRODUCES = "reproduces"
    """Of a baseline: every replay equal to the receipt."""
    ANOTHER_RESULT = "another_result"
    """Of a baseline: it repeats, but not what was recorded."""
    UNSTEADY = "unsteady"
    """Of a baseline: it does not repeat with nothing changed."""
    NOT_SHOWN = "not_shown"
    """Every replay as the baseline's: not shown to matter."""
    FLIPS = "flips"
    ANOTHER_FUNCTION = "another_function"
    """Never the baseline's answer, always its own: it computes something else, reproducibly."""
    RESTORES = "restores"
    """The baseline no longer gives the recorded answer, and with this it does."""
    STEADIES = "steadies"
    """The baseline does not repeat, and with this it does."""
    UNATTRIBUTED = "unattributed"
    """It differed, but afterwards so did the baseline with nothing changed."""
    UNDECIDED = "undecided"
    """Too few replays could be compared."""


DECISIVE = (Finding.FLIPS, Finding.ANOTHER_FUNCTION, Finding.RESTORES, Finding.STEADIES)


class Tally(Frozen):
    """The replays of one rung, counted. Only comparable ones are counted at all."""

    n: int
    """Replays that could be compared with the receipt."""
    incomparable: int = 0
    equal_receipt: int
    equal_baseline: int | None = None
    """Equal to the baseline's first replay; None for a baseline."""
    repeats: int
    """Equal to the rung's own first replay, of the `n - 1` after it."""

    @property
    def steady(self) -> bool:
        """It repeated with itself every time there was to see."""
        return self.n >= 2 and self.repeats == self.n - 1


class Tried(Frozen):
    """A rung that was measured."""

    rung: Rung
    changed: dict[str, str | None] = Field(default_factory=dict)
    """What was set, flag or request field with its value; empty where the rung changes neither."""
    drawn_anew: bool = False
    """Another draw was asked for, so another answer is no finding."""
    tally: Tally
    finding: Finding
    control: Tally | None = None
    """The baseline once more after a flip: what has to come out as before for the flip to be the rung's."""
    load: LoadSeen | None = None
    neighbours: int | None = None
    """The most other requests the engine reported during a rung that should be alone."""
    cached: tuple[int, int] | None = None
    """Fewest and most prompt tokens that came from the cache; None where the engine does not tell."""
    start_seconds: float | None = None
    """Of an engine that was started for this rung."""
    first_difference: Comparison | None = None
    """The first comparison with the receipt that was not equal."""
    diagnosis: Diagnosis | None = None
    """Of that comparison."""
    runs: tuple[str, ...] = ()
    """Digests of the replays' receipts."""


class NotTried(Frozen):
    """A rung that was not measured, and why: a key of `isolate.why.…`, or the words of what failed."""

    rung: Rung
    why: str
    detail: str = ""


class Isolation(Frozen):
    """The ladder as far as it was climbed."""

    digest: str
    level: Literal["tokens", "logprobs"]
    times: int
    tried: tuple[Tried, ...] = ()
    not_tried: tuple[NotTried, ...] = ()
    complete: bool = False
    """Every rung was tried, or the first decisive one ended it as asked."""

    @property
    def decisive(self) -> tuple[Tried, ...]:
        return tuple(tried for tried in self.tried if tried.finding in DECISIVE)

    @property
    def unsettled(self) -> tuple[Tried, ...]:
        """Where the recorded answer did not come although nothing was changed."""
        odd = (Finding.ANOTHER_RESULT, Finding.UNSTEADY, Finding.UNATTRIBUTED)
        return tuple(tried for tried in self.tried if tried.finding in odd)

    @property
    def outcome(self) -> Literal["flipped", "not_flipped", "undecided"]:
        if self.decisive or self.unsettled:
            return "flipped"
        measured = [tried for tried in self.tried if tried.finding is not Finding.UNDECIDED]
        # An odd engine out among many rungs is said in its own line; without a baseline nothing is known.
        return "not_flipped" if measured and self.tried[0] in measured else "undecided"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the ladder stands."""

    rung: Rung
    number: int
    """1-based, of `rungs`."""
    rungs: int
    replay: int
    """1-based, of `times`; 0 while an engine starts."""
    times: int
    tokens: int
    recorded_tokens: int
    seconds_left: float | None
    """At the speed so far; None before there is any."""


def equal(comparison: Comparison, level: Literal["tokens", "logprobs"]) -> bool:
    """Whether two runs came out the same at this level; unknown logprobs never count as different."""
    return comparison.verdict is Verdict.IDENTICAL or (level == "tokens" and comparison.reproduced)


def tally(
    with_receipt: Sequence[Comparison],
    with_own_first: Sequence[Comparison],
    with_baseline: Sequence[Comparison] | None,
    level: Literal["tokens", "logprobs"],
) -> Tally:
    """Count the comparisons of one rung, all in the order of its replays.

    `with_own_first` starts at the second replay. A replay that cannot be compared with the receipt
    (another prompt, another model) is left out by the caller of the other two, and counted here.
    """
    comparable = [one for one in with_receipt if one.verdict is not Verdict.INCOMPARABLE]
    return Tally(
        n=len(comparable),
        incomparable=len(with_receipt) - len(comparable),
        equal_receipt=sum(equal(one, level) for one in comparable),
        equal_baseline=None if with_baseline is None else sum(equal(one, level) for one in with_baseline),
        repeats=sum(equal(one, level) for one in with_own_first),
    )


def judge(rung: Rung, counted: Tally, baseline: Tally | None, *, drawn_anew: bool = False) -> Finding:
    """What a rung's counts show beside its baseline's (None for a baseline itself)."""
    if counted.n < 2 or (baseline is not None and baseline.n < 2):
        return Finding.UNDECIDED
    if baseline is None:
        return _judge_baseline(counted)
    if not baseline.steady:
        return Finding.STEADIES if counted.steady else Finding.NOT_SHOWN
    if drawn_anew:
        return Finding.NOT_SHOWN if counted.steady else Finding.FLIPS
    if counted.equal_baseline == counted.n:
        return Finding.NOT_SHOWN
    if counted.equal_receipt == counted.n and baseline.equal_receipt == 0:
        return Finding.RESTORES
    if rung in OWN and counted.steady and counted.equal_baseline == 0:
        return Finding.ANOTHER_FUNCTION
    return Finding.FLIPS


def controlled(finding: Finding, control: Tally) -> Finding:
    """A flip stands only if the baseline still comes out as before it."""
    return finding if control.n and control.equal_baseline == control.n else Finding.UNATTRIBUTED


def _judge_baseline(counted: Tally) -> Finding:
    if counted.equal_receipt == counted.n:
        return Finding.REPRODUCES
    return Finding.ANOTHER_RESULT if counted.steady else Finding.UNSTEADY


def bound(same: int, n: int) -> int:
    """The Wilson bound in whole percent, rounded down: it must not promise more than it is."""
    return int(100 * wilson_lower(same, n)) if n else 0
