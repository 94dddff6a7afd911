"""Every error Encore raises on purpose, each with the advice that goes with it.

The chat and the command line print the same two sentences: what is wrong, and what to do.

    EncoreError
    ├── SettingsError            a value typed or configured is outside its range
    ├── EngineError
    │   ├── EngineUnreachable    nothing answers at the engine's address
    │   ├── EngineNotReady       something answers, but the model is not loaded yet
    │   ├── EngineRejected       the engine refused the request (HTTP 4xx)
    │   │   ├── ModelNotServed
    │   │   └── PromptTooLong
    │   └── EngineInterrupted    the stream ended without a finish reason
    ├── LaunchError              start.sh cannot or must not start an engine
    ├── StoreError               a receipt could not be stored or read
    │   └── ReceiptNotFound      no receipt, or more than one, under that digest
    ├── ReceiptInvalid           a file is not a receipt, or its digest does not match
    └── SignatureInvalid         a signature is not by this key, or not over these receipts
"""

from __future__ import annotations


class EncoreError(Exception):
    """Base of everything raised on purpose; `str(error)` is what is wrong, `advice` what to do."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice

    def diagnostics(self) -> str:
        """Problem and advice as one line for people."""
        return f"{self.problem} {self.advice}".strip()


class SettingsError(EncoreError):
    """A setting is outside its allowed range; nothing was sent and the last good value stands."""


class EngineError(EncoreError):
    """The engine did not do what was asked."""


class EngineUnreachable(EngineError):
    """No TCP or HTTP answer at the engine's address."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"No engine answers at {url}.",
            "Start it with ./start.sh engine, or see llm.log if it has just stopped.",
        )


class EngineNotReady(EngineError):
    """The engine answers but cannot serve yet (loading) or any more (its core died)."""


class EngineRejected(EngineError):
    """HTTP 4xx: the request itself is at fault, sending it again will not help."""


class ModelNotServed(EngineRejected):
    """The recorded model name is not among the served ones."""

    def __init__(self, asked: str, served: tuple[str, ...]) -> None:
        names = ", ".join(served) or "nothing"
        super().__init__(
            f"The engine does not serve {asked}; it serves {names}.",
            "Start the recorded model, or ask anew with the one that is running.",
        )


class PromptTooLong(EngineRejected):
    """Prompt plus answer budget exceed the context length (all in tokens)."""

    def __init__(self, prompt_tokens: int | None, max_tokens: int, context: int) -> None:
        count = "too many" if prompt_tokens is None else f"{prompt_tokens:,}"
        super().__init__(
            f"The prompt has {count} tokens and the answer may take {max_tokens:,}; "
            f"this engine's context holds {context:,} in all.",
            "Shorten the question, start a new chat, or lower max tokens in the settings.",
        )


class EngineInterrupted(EngineError):
    """The stream broke after `tokens` tokens; what had arrived is recorded as interrupted."""

    def __init__(self, tokens: int, reason: str) -> None:
        super().__init__(
            f"The engine's answer broke off after {tokens:,} tokens: {reason}.",
            "What arrived is kept and marked interrupted; ask again when the engine is back.",
        )
        self.tokens = tokens
        self.reason = reason


class LaunchError(EncoreError):
    """Preflight or launch failed; `exit_code` is what start.sh returns."""

    def __init__(self, problem: str, advice: str = "", exit_code: int = 2) -> None:
        super().__init__(problem, advice)
        self.exit_code = exit_code


class StoreError(EncoreError):
    """The database refused; the run is not recorded and the caller must say so."""


class ReceiptNotFound(StoreError):
    """No receipt, or several, match the digest prefix."""


class ReceiptInvalid(EncoreError):
    """A file is not a receipt of a format we read, or its content does not hash to its digest."""


class SignatureInvalid(EncoreError):
    """An envelope is not signed by the given key, or a file holds other receipts than were signed."""
