"""Replay every receipt of a file, a few at a time; broken off, it goes on where it was.

The file is read line by line and every finished replay is one line of a log, on the disk before the
next begins. A receipt in the log is not replayed again, so a batch that was stopped, or whose engine
died, is finished by the same command. Memory holds one digest per receipt and what is under way.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Annotated

from pydantic import StringConstraints, ValidationError

from llm_backend.check import Calibrations
from llm_backend.compare import Verdict
from llm_backend.diagnose import Cause
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EncoreError, EngineNotReady, EngineUnreachable, ReceiptInvalid, StoreError
from llm_backend.exchange import SHOWN_REFUSALS, Refusal, read_lines
from llm_backend.receipt import Frozen, Receipt
from llm_backend.replay import replay
from llm_backend.store import Store

LOG_SUFFIX = ".replays.jsonl"

_ENDS_THE_BATCH = (EngineUnreachable, EngineNotReady, StoreError)
"""What would befall every further receipt as well: the rest is left for the next time."""

_SHOWN = 20
"""Outcomes named one by one in a summary; the log has them all."""

_LONGEST_ENTRY = 2**16
"""Bytes; a line of the log has a few hundred."""


class Outcome(Frozen):
    """What came of one receipt: a line of the log."""

    digest: Annotated[str, StringConstraints(pattern="^sha256:[0-9a-f]{64}$")]
    """Of the receipt that was replayed."""
    verdict: Verdict | None = None
    """None: it could not be replayed, `problem` says why."""
    cause: Cause | None = None
    position: int | None = None
    """Of the first different token, 0-based."""
    run_id: str | None = None
    """The replay, as it is stored."""
    fingerprint_digest: str | None = None
    """Of the engine that answered."""
    problem: str | None = None


class BatchReport(Frozen):
    """A batch so far; complete once nothing is `left`."""

    receipts: int
    """Different receipts in the file."""
    verdicts: dict[Verdict, int]
    causes: dict[Cause, int]
    failed: int
    """Receipts that could not be replayed; tried again the next time."""
    left: int
    """Receipts not reached."""
    refused: int
    """Lines of the file that are no receipt."""
    concurrency: int
    engines: int
    """Different engine fingerprints among the replays."""
    notable: tuple[Outcome, ...]
    """The first that did not come out the same, or at all."""
    refusals: tuple[Refusal, ...]

    @property
    def comparable(self) -> int:
        return sum(n for verdict, n in self.verdicts.items() if verdict is not Verdict.INCOMPARABLE)


class BatchReplay:
    """The replays of one file on one engine."""

    def __init__(
        self,
        engine: EngineClient,
        store: Store,
        file: Path,
        log: Path,
        *,
        concurrency: int,
        chat_id: str,
        calibrations: Calibrations | None = None,
        on_progress: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """`concurrency`: replays in flight at once. `on_progress(done, receipts)` after each of them."""
        self._engine, self._store, self._file, self._log_path = engine, store, file, log
        self._concurrency, self._chat_id, self._calibrations = concurrency, chat_id, calibrations
        self._on_progress = on_progress
        self._digests: set[bytes] = set()
        self._done: set[bytes] = set()
        self._verdicts: Counter[Verdict] = Counter()
        self._causes: Counter[Cause] = Counter()
        self._failed = self._refused = 0
        self._engines: set[str] = set()
        self._notable: list[Outcome] = []
        self._refusals: list[Refusal] = []

    async def run(self) -> BatchReport:
        """Replay what is not in the log yet.

        Raises `EncoreError` when the file or the log cannot be used, or when nothing further can be
        replayed (engine gone, database refuses): `report()` then still tells what was done.
        """
        await asyncio.to_thread(self._survey)
        with _open_log(self._log_path) as log:
            for outcome in _logged(log):
                if _key(outcome.digest) in self._digests:
                    self._count(outcome)
            self._on_progress(len(self._done), len(self._digests))
            try:
                await self._replay_all(log)
            except* EncoreError as errors:
                raise _first(errors) from None
        return self.report()

    def report(self) -> BatchReport:
        """What was done so far, this time and the times before."""
        done = sum(self._verdicts.values())
        return BatchReport(
            receipts=len(self._digests),
            verdicts={verdict: self._verdicts[verdict] for verdict in Verdict},
            causes=dict(self._causes.most_common()),
            failed=self._failed,
            left=len(self._digests) - done - self._failed,
            refused=self._refused,
            concurrency=self._concurrency,
            engines=len(self._engines),
            notable=tuple(self._notable),
            refusals=tuple(self._refusals),
        )

    def _survey(self) -> None:
        """Read the file once: how many receipts it holds, and which lines hold none."""
        for number, read in read_lines(self._file):
            if isinstance(read, ReceiptInvalid):
                self._refused += 1
                if len(self._refusals) < SHOWN_REFUSALS:
                    self._refusals.append(Refusal(str(self._file), number, read.problem))
            else:
                self._digests.add(_key(read.digest))

    async def _replay_all(self, log: IO[bytes]) -> None:
        places = asyncio.Semaphore(self._concurrency)
        begun = set(self._done)
        lines = read_lines(self._file)
        async with asyncio.TaskGroup() as group:
            while entry := await asyncio.to_thread(next, lines, None):
                read = entry[1]
                if isinstance(read, ReceiptInvalid) or (key := _key(read.digest)) in begun:
                    continue
                begun.add(key)
                await places.acquire()
                group.create_task(self._replay(read.receipt, log)).add_done_callback(
                    lambda _: places.release()
                )

    async def _replay(self, receipt: Receipt, log: IO[bytes]) -> None:
        outcome = await self._outcome(receipt)
        _append(log, outcome)
        self._count(outcome)
        self._on_progress(len(self._done) + self._failed, len(self._digests))

    async def _outcome(self, receipt: Receipt) -> Outcome:
        try:
            reference = await self._store.add_receipt(receipt)
            result = await replay(
                self._engine,
                self._store,
                reference,
                chat_id=self._chat_id,
                calibrations=self._calibrations,
            )
        except _ENDS_THE_BATCH:
            raise
        except EncoreError as error:
            return Outcome(digest=receipt.digest, problem=error.problem)
        fork = result.comparison.first_divergence
        return Outcome(
            digest=receipt.digest,
            verdict=result.comparison.verdict,
            cause=result.diagnosis.cause,
            position=fork.position if fork else None,
            run_id=result.run.id,
            fingerprint_digest=result.run.fingerprint_digest,
        )

    def _count(self, outcome: Outcome) -> None:
        if outcome.verdict is None:
            self._failed += 1
        else:
            key = _key(outcome.digest)
            if key in self._done:
                return
            self._done.add(key)
            self._verdicts[outcome.verdict] += 1
            if outcome.cause is not None and outcome.verdict is not Verdict.IDENTICAL:
                self._causes[outcome.cause] += 1
            if outcome.fingerprint_digest is not None:
                self._engines.add(outcome.fingerprint_digest)
        if outcome.verdict is not Verdict.IDENTICAL and len(self._notable) < _SHOWN:
            self._notable.append(outcome)


@contextmanager
def _open_log(path: Path) -> Iterator[IO[bytes]]:
    """The log, open for reading from its start and appending, for this process alone."""
    try:
        with path.open("a+b") as log:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EncoreError(
                    f"Another replay is writing {path}.", "Wait for it, or choose another file with --log."
                ) from None
            yield log
    except OSError as error:
        raise EncoreError(f"{path} cannot be written: {error.strerror or error}.") from None


def _logged(log: IO[bytes]) -> Iterator[Outcome]:
    """The verdicts in the log; half a last line, left by a process that was killed, is cut off.

    Failures are not among them: they are tried again. Raises `EncoreError` for a file of another kind,
    which is left as it is.
    """
    log.seek(0)
    whole = 0
    for number, line in enumerate(iter(partial(log.readline, _LONGEST_ENTRY), b""), start=1):
        try:
            outcome = Outcome.model_validate_json(line)
        except ValidationError:
            if number > 1 and not line.endswith(b"\n"):
                break
            raise EncoreError(
                f"{log.name}, line {number}, is not of a log of replays.", "Choose another file with --log."
            ) from None
        whole = log.tell()
        if outcome.verdict is not None:
            yield outcome
    log.truncate(whole)


def _append(log: IO[bytes], outcome: Outcome) -> None:
    """On the disk before the next receipt begins: what is not in the log is replayed again."""
    log.write(outcome.model_dump_json(exclude_none=True).encode() + b"\n")
    log.flush()
    os.fsync(log.fileno())


def _key(digest: str) -> bytes:
    """32 bytes instead of the 71 characters of a written digest: there may be very many."""
    return bytes.fromhex(digest.removeprefix("sha256:"))


def _first(errors: BaseExceptionGroup[EncoreError]) -> EncoreError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
