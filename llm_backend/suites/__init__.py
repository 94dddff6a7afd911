"""Suites of prompts to verify an engine with, as TOML: `maths.toml` is shipped, others are files of yours.

    name = "mine"
    seed = 42                       # of the seeded cases, and recorded for the greedy ones
    temperature = 0.8               # of the seeded cases
    max_tokens = 128

    [[prompts]]
    name = "product"
    text = "What is 235 times 478?"
    sampling = ["greedy", "seeded"] # a case each; without it: greedy
    quick = true                    # also part of --quick
    max_tokens = 96                 # instead of the suite's
    system = "Answer briefly."      # optional

What it holds is checked before anything is asked.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from llm_backend.config import SEED_MAX, SEED_MIN
from llm_backend.errors import SettingsError
from llm_backend.receipt import Frozen, Message, Sampling

DEFAULT = Path(__file__).with_name("maths.toml")

SUFFIX = ".toml"
"""A file of this name is a suite; receipts are JSON."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
MaxTokens = Annotated[int, Field(ge=1, le=131_072)]


class Prompt(Frozen):
    """One question and the ways it is asked."""

    name: Name
    text: Annotated[str, Field(min_length=1)]
    system: str = ""
    sampling: Annotated[tuple[Literal["greedy", "seeded"], ...], Field(min_length=1)] = ("greedy",)
    max_tokens: MaxTokens | None = None
    quick: bool = False

    @property
    def messages(self) -> tuple[Message, ...]:
        asked = Message(role="user", content=self.text)
        return (Message(role="system", content=self.system), asked) if self.system else (asked,)


class Suite(Frozen):
    """Prompts, and the sampling they share."""

    name: Name
    seed: Annotated[int, Field(ge=SEED_MIN, le=SEED_MAX)] = 42
    temperature: Annotated[float, Field(gt=0, le=2)] = 0.8
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: MaxTokens = 128
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 5
    prompts: Annotated[tuple[Prompt, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [prompt.name for prompt in self.prompts]
        if len(set(names)) < len(names):
            raise ValueError("two prompts have the same name")
        if self.seed == -1:
            raise ValueError("seed -1 means 'no seed' to vLLM, so nothing could be reproduced")
        return self

    def quick(self) -> Suite:
        """Only the prompts marked quick, or the first where none is."""
        kept = tuple(prompt for prompt in self.prompts if prompt.quick) or self.prompts[:1]
        return self.model_copy(update={"prompts": kept})

    def cases(self) -> Iterator[tuple[str, Prompt, Sampling]]:
        """Each prompt with each of its ways of sampling: `product/greedy`, `product/seeded`."""
        for prompt in self.prompts:
            for way in dict.fromkeys(prompt.sampling):
                sampling = Sampling(
                    seed=self.seed,
                    temperature=self.temperature if way == "seeded" else 0.0,
                    top_p=self.top_p if way == "seeded" else 1.0,
                    max_tokens=prompt.max_tokens or self.max_tokens,
                    top_logprobs=self.top_logprobs,
                )
                yield f"{prompt.name}/{way}", prompt, sampling


def load_suite(path: Path = DEFAULT) -> Suite:
    """Read a suite; raises `SettingsError` naming the file and the field at fault."""
    try:
        return Suite.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(f"The suite {path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            f"The suite {path} is not TOML: {error}.", f"{DEFAULT.name}, shipped with Encore, is an example."
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = str(first["msg"]).removeprefix("Value error, ")
        raise SettingsError(
            f"The suite {path} cannot be used: {where + ': ' if where else ''}{said}.",
            f"{DEFAULT.name}, shipped with Encore, is an example.",
        ) from None
