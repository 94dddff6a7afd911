"""Reports on logits and attention weights: several passes over one recorded answer, compared bit by bit."""

from __future__ import annotations

from llm_backend.receipt import Frozen


class PassComparison(Frozen):
    """One pass against the first one; rows are positions (logits) or layers (attention)."""

    rows: int
    equal: int
    """Rows equal in every bit."""
    first_different: int | None
    max_abs_diff: float
    """Largest difference anywhere; in units of the logits, or of attention weights (0 to 1)."""
    max_abs_diffs: tuple[float, ...]
    """Per row."""
    digest: str
    """Of this pass's values."""

    @property
    def same(self) -> bool:
        return self.equal == self.rows


class LogitsAt(Frozen):
    """What the full logits say about one recorded token."""

    position: int
    token: int
    logit: float
    logprob: float
    """Nats: the logit minus the log-sum-exp over the whole vocabulary."""
    recorded_logprob: float | None
    rank: int
    """1: no token has a larger logit; tied tokens share the better rank."""
    best: int
    """Token id with the largest logit."""
    margin: float
    """Largest logit minus the second largest; 0 is an exact tie."""


class Inspection(Frozen):
    """What both reports have: passes by name, compared with the first."""

    digest: str
    passes: dict[str, PassComparison]

    @property
    def same(self) -> bool:
        return all(compared.same for compared in self.passes.values())


class LogitsReport(Inspection):
    """Full logits of the last positions."""

    vocabulary: int
    by_decoding: PassComparison | None
    """Logits while generating against those of prefills: two ways to compute, no measure of repeating.
    None for a sampled answer."""
    positions: tuple[LogitsAt, ...]
    one_at_a_time: bool
    """The engine takes one sequence at a time, so the pass `together` was not a batch."""

    @property
    def max_logprob_diff(self) -> float | None:
        """Nats, between the recorded logprobs and those of the logits; None when none is known."""
        known = [at for at in self.positions if at.recorded_logprob is not None]
        return max((abs(at.logprob - (at.recorded_logprob or 0.0)) for at in known), default=None)


class AttentionReport(Inspection):
    """Attention weights of the last positions, all layers and heads."""

    heads: int
    tokens: int
    """Prompt and answer."""
    positions: int
    digests: tuple[str, ...]
    """Of each layer's weights in the first pass."""
