"""Full logits at the last positions of a recorded answer, from vLLM itself, in several passes.

What the guide's `outputs[0].logits` was meant to give. vLLM has no such field; with the job's flags
`--logprobs-mode raw_logits --max-logprobs -1` it returns the whole vocabulary's logits where it would
return log-probabilities (vllm/config/model.py). Every position is asked for with the recorded tokens
before it and one new token, so a sampled answer can be looked at like a greedy one:

    alone      one position after the other, each request alone
    again      the same once more
    together   all positions in one batch
    decoded    greedy answers only: generated in one go from the first of the positions, twice

All but the last are logits of prefills. An answer was chosen by those of its decoding, and `by_decoding`
says how far these are from the prefills', as long as the recorded tokens come. No request reads the
prefix cache (`cache_salt`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import torch  # type: ignore[import-not-found]  # only in the engine's environment
from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
from vllm.engine.arg_utils import EngineArgs  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

from llm_backend.offline.passes import Channel, RefusedError, compare, digest, load, save, serve

SERVER_ONLY = {"--enable-prompt-tokens-details"}
"""Flags of a profile that the HTTP server has and the engine class has not."""


def work(job: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """`job`: model, arguments, prompt, answer (token ids), logprobs (nats), greedy, last, receipt, save,
    against; what comes back is the model `internals.LogitsReport`."""
    prompt, answer = job["prompt"], job["answer"]
    positions = list(range(len(answer)))[-job["last"] :]
    about = {"kind": "logits", "receipt": job["receipt"], "positions": positions}
    kept = load(job["against"], about) if job["against"] else None
    channel.stage("load", 0, 1)
    llm = engine(job["model"], job["arguments"])
    inputs = [[*prompt, *answer[:position]] for position in positions]

    def one_by_one(stage: str) -> torch.Tensor:
        rows = []
        for done, given in enumerate(inputs):
            channel.stage(stage, done, len(inputs))
            rows.append(logits(llm, [given])[0][1])
        return torch.cat(rows)

    reference, again = one_by_one("alone"), one_by_one("again")
    channel.stage("together", 0, 1)
    together = torch.cat([rows for _, rows in logits(llm, inputs)])
    passes = {
        "again": compare(positions, reference, again),
        "together": compare(positions, reference, together),
    }
    by_decoding = None
    if job["greedy"]:
        channel.stage("decoded", 0, 2)
        ((tokens, first),) = logits(llm, inputs[:1], count=len(positions))
        channel.stage("decoded", 1, 2)
        ((_, second),) = logits(llm, inputs[:1], count=len(positions))
        passes["decoded"] = compare(positions, first, second)
        alike = followed(tokens, [answer[position] for position in positions])
        by_decoding = compare(positions[:alike], reference[:alike], first[:alike])
    if kept is not None:
        passes["kept"] = compare(positions, kept, reference)
    if job["save"]:
        save(job["save"], reference, about)
    recorded = torch.tensor([answer[position] for position in positions])
    return {
        "vocabulary": reference.shape[1],
        "digest": digest(reference),
        "passes": passes,
        "by_decoding": by_decoding,
        "positions": described(positions, recorded, reference, [job["logprobs"][p] for p in positions]),
        "one_at_a_time": llm.llm_engine.vllm_config.scheduler_config.max_num_seqs == 1,
    }


def engine(model: str, arguments: Sequence[str]) -> LLM:
    """The engine that the server's command line describes."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed, unknown = parser.parse_known_args([*arguments, "--model", model])
    if rest := set(unknown) - SERVER_ONLY:
        raise RefusedError(f"This vLLM does not know {', '.join(sorted(rest))}.")
    return LLM(**vars(EngineArgs.from_cli_args(parsed)))


def logits(llm: LLM, inputs: Sequence[list[int]], *, count: int = 1) -> list[tuple[list[int], torch.Tensor]]:
    """For each input the `count` most likely tokens in a row, and float32 logits (count, vocabulary)."""
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=count,
        ignore_eos=True,
        logprobs=-1,
        flat_logprobs=True,
        detokenize=False,
    )
    prompts = [{"prompt_token_ids": given, "cache_salt": uuid.uuid4().hex} for given in inputs]
    outputs = [output.outputs[0] for output in llm.generate(prompts, sampling, use_tqdm=False)]
    return [(list(output.token_ids), torch.stack(list(rows(output.logprobs)))) for output in outputs]


def followed(generated: Sequence[int], recorded: Sequence[int]) -> int:
    """Rows that still had only recorded tokens before them."""
    pairs = zip(generated, recorded, strict=True)
    return next((row for row, (a, b) in enumerate(pairs) if a != b), len(recorded) - 1) + 1


def rows(told: Any) -> Iterator[torch.Tensor]:
    """vLLM's `FlatLogprobs`, which here hold logits, as one row over the vocabulary per token."""
    for start, end in zip(told.start_indices, told.end_indices, strict=True):
        values = dict(zip(told.token_ids[start:end], told.logprobs[start:end], strict=True))
        yield torch.tensor([values[token] for token in range(len(values))], dtype=torch.float32)


def described(
    positions: Sequence[int], tokens: torch.Tensor, values: torch.Tensor, recorded: Sequence[float | None]
) -> list[dict[str, Any]]:
    """What the logits say about each recorded token: logit, log-probability (nats), rank, the best one."""
    own = values.gather(1, tokens[:, None])
    logprobs = (own - values.logsumexp(1, keepdim=True))[:, 0].tolist()
    best = values.topk(2, 1)
    return [
        {
            "position": position,
            "token": int(tokens[row]),
            "logit": own[row, 0].item(),
            "logprob": logprobs[row],
            "recorded_logprob": recorded[row],
            # Tied tokens share the better rank.
            "rank": int((values[row] > own[row]).sum()) + 1,
            "best": int(best.indices[row, 0]),
            "margin": (best.values[row, 0] - best.values[row, 1]).item(),
        }
        for row, position in enumerate(positions)
    ]


if __name__ == "__main__":
    serve(work)
