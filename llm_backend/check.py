"""The instant check: ask the engine for its logprobs of a recorded answer, all positions in one prefill.

Generating takes one step per token, a prefill takes all tokens at once: the check costs a fraction of
a replay. It says less, too: that this engine gives these tokens these probabilities, not that it would
generate them again. `scoring` says what the verdicts mean; here are the requests and the self-check
that a tolerance rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from llm_backend.compare import NearTie
from llm_backend.engine.client import EngineClient
from llm_backend.errors import EngineNotReady, EngineRejected
from llm_backend.receipt import EngineFingerprint, Message, Receipt, Sampling, TokenRecord
from llm_backend.record import build_request
from llm_backend.scoring import (
    Calibration,
    Check,
    CheckedPosition,
    TokenScore,
    bit_exact,
    judge,
    largest_difference,
    must_be_most_likely,
    obstacles,
    refused,
    score,
)

PIECE = 4096
"""Answer tokens checked per request. A piece needs all that precedes it, and the engine is silent until
it is done: a long answer shows progress and can be stopped between two pieces."""

SELF_CHECK_PROMPT = "Write a long story about a river, a bridge and a lantern."
SELF_CHECK = Sampling(seed=1, temperature=1.0, max_tokens=128, top_logprobs=0)
"""Sampled, because unlikely tokens differ most: a greedy run of the same length was measured at 0.11
nats where this one was at 0.26 (CPU, bfloat16) and a greedy run of 512 tokens at 0.22."""

LOOK_EVERY = 16
"""Tokens of the self-check between two looks at the engine's load."""

OnProgress = Callable[[Literal["check", "calibrate"], int, int], None]
"""Called with what is being done, tokens done, and tokens in all."""


class Calibrations:
    """The tolerances measured so far, one per engine fingerprint, in a file of their own.

    A cache: what it loses is measured again.
    """

    _entries = TypeAdapter(dict[str, Calibration])

    def __init__(self, file: Path) -> None:
        self._file = file

    def find(self, engine: EngineFingerprint) -> Calibration | None:
        return self._read().get(engine.digest)

    def near_tie_of(self, fingerprint_digest: str) -> NearTie | None:
        """Up to which margin that engine's rounding swaps two tokens, where it was measured."""
        measured = self._read().get(fingerprint_digest)
        return measured.near_tie if measured else None

    def keep(self, calibration: Calibration) -> None:
        entries = self._read() | {calibration.engine: calibration}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".tmp")
        draft.write_bytes(self._entries.dump_json(entries, indent=2))
        draft.replace(self._file)

    def _read(self) -> dict[str, Calibration]:
        try:
            return self._entries.validate_json(self._file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return {}


async def check(
    engine: EngineClient,
    receipt: Receipt,
    calibrations: Calibrations,
    *,
    on_progress: OnProgress = lambda *_: None,
) -> Check:
    """Check `receipt` on `engine`; measures the engine's tolerance first where one is needed and unknown.

    Raises `EngineUnreachable`, `EngineNotReady`, `EngineRejected` or `EngineInterrupted`.
    """
    identity = await engine.identity()
    if reasons := obstacles(receipt, identity):
        return refused(reasons)
    tokens = receipt.completion.tokens
    prompt = receipt.request.prompt_token_ids
    positions, identity = await _prefill(engine, identity, prompt, tokens, on_progress)
    calibration = None
    if not bit_exact(positions, must_be_most_likely=must_be_most_likely(receipt.request.sampling)):
        calibration = calibrations.find(identity)
        if calibration is None:
            calibration = await calibrate(engine, identity, on_progress)
            calibrations.keep(calibration)
    return judge(receipt, identity, positions, calibration)


async def calibrate(
    engine: EngineClient, identity: EngineFingerprint, on_progress: OnProgress = lambda *_: None
) -> Calibration:
    """Generate a short answer and check it at once: how far this engine is from itself.

    Only alone: beside others the CPU engine decodes as it prefills, and a tolerance of 0 measured then
    would wrong every answer recorded alone. The answer is not recorded. Raises what `check` raises.
    """
    request = build_request(identity.model, [Message(role="user", content=SELF_CHECK_PROMPT)], SELF_CHECK)
    tokens: list[TokenRecord] = []
    await _refuse_neighbours(engine, own=0)
    async with engine.stream(request) as stream:
        async for delta in stream:
            if not len(tokens) % LOOK_EVERY:
                await _refuse_neighbours(engine, own=1)
            tokens.extend(delta.tokens)
            on_progress("calibrate", len(tokens), SELF_CHECK.max_tokens)
    prompt = stream.fold.prompt_token_ids
    positions = (await _prefill(engine, identity, prompt, tokens))[0] if prompt else ()
    largest = largest_difference(positions)
    if largest is None:
        raise EngineRejected(
            "This engine reports no token ids or log-probabilities to check against.",
            "Replay the run instead: encore replay.",
        )
    return Calibration(engine=identity.digest, positions=len(positions), largest=largest)


async def _refuse_neighbours(engine: EngineClient, *, own: int) -> None:
    """`own`: requests of ours that may be running. An engine without metrics is taken to be alone."""
    others = (await engine.running() or 0) - own
    if others > 0:
        raise EngineNotReady(
            f"The engine is also serving {others:,} other request{'s' if others > 1 else ''}; "
            "how far it is from itself must be measured alone, once.",
            "Check again when it is idle.",
        )


async def _prefill(
    engine: EngineClient,
    identity: EngineFingerprint,
    prompt: Sequence[int],
    tokens: Sequence[TokenRecord],
    on_progress: OnProgress = lambda *_: None,
) -> tuple[tuple[CheckedPosition, ...], EngineFingerprint]:
    """Check `tokens` after `prompt`, and the identity completed by what the replies told."""
    sequence = [*prompt, *(token.id for token in tokens)]
    # The engine generates one token after a prompt, so the last one of a full context cannot be asked.
    end = len(sequence) if len(sequence) != identity.max_model_len else len(sequence) - 1
    scores: list[TokenScore | None] = []
    for start in range(len(prompt), end, PIECE):
        on_progress("check", start - len(prompt), len(tokens))
        prefill = await engine.prefill(identity.model, sequence[: min(start + PIECE, end)])
        scores.extend(prefill.scores[start:])
        identity = identity.model_copy(update={"system_fingerprint": prefill.system_fingerprint})
    return score(tokens, scores), identity
