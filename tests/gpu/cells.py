"""One engine, one setting: do answers depend on company, does a prefill equal the decode, what does it cost.

    VLLM_BATCH_INVARIANT=1 VLLM_USE_FLASHINFER_SAMPLER=0 ENCORE_STRICT_GEMM=cublas \
        python tests/gpu/cells.py --model DIR --profile strict --out result.json

Runs in the engine's environment (vLLM and torch, nothing of Encore). Four target prompts are generated alone
first; every later copy of them, in whatever company, is compared with that reference token by token and
log-probability by log-probability, bit for bit.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # lets the harness profile inside the worker

TOKENS = 256
"""Length of every compared answer."""
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "seed": 42},
    "seeded": {"temperature": 0.8, "seed": 42},
    "seeded top-p": {"temperature": 0.8, "top_p": 0.95, "seed": 42},
}
PROMPT_LENGTHS = (40, 200, 700, 1500)
NEIGHBOUR_LENGTHS = (8, 17, 33, 64, 100, 129, 256, 400, 513, 1000)

Prompt = list[int]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request returned."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    """Nats between the two best tokens at each position."""


@dataclass(slots=True)
class Cell:
    """All copies of the targets generated in one kind of company."""

    company: str
    sampling: str
    runs: int = 0
    same_tokens: int = 0
    same_bits: int = 0
    """Tokens and log-probabilities equal to the reference in every bit."""
    distinct: list[int] = field(default_factory=list)
    """Distinct token sequences seen of each target, the reference included."""
    forks: list[tuple[int, int, float]] = field(default_factory=list)
    """(target, position, margin of the reference there) of each different answer."""
    seconds: float = 0.0


class Workload:
    """Prompts: fixed targets, and neighbours drawn from a seeded generator."""

    def __init__(self, vocabulary: int, prompts: Path | None) -> None:
        self._random = Random(1234)
        self._highest = vocabulary - 1100  # leaves the special tokens at the end of Phi's vocabulary out
        stored = json.loads(prompts.read_text()) if prompts else {"targets": None, "others": None}
        self._others: list[Prompt] | None = stored["others"]
        fixed = Random(7)
        self.targets: list[Prompt] = stored["targets"] or [
            [fixed.randrange(10, self._highest) for _ in range(length)] for length in PROMPT_LENGTHS
        ]

    def random(self, length: int) -> Prompt:
        return [self._random.randrange(10, self._highest) for _ in range(length)]

    def neighbour(self) -> Prompt:
        if self._others and self._random.random() < 0.7:
            return self._random.choice(self._others)
        return self.random(self._random.choice(NEIGHBOUR_LENGTHS))

    def shuffled(self, size: int) -> list[int | None]:
        """`size` places, half of them targets (by number), in random order."""
        places: list[int | None] = [index % len(self.targets) for index in range(max(1, size // 2))]
        places += [None] * (size - len(places))
        self._random.shuffle(places)
        return places

    def neighbour_length(self) -> int:
        return self._random.randint(16, TOKENS)

    def pause(self) -> float:
        """Seconds until the next arrival."""
        return self._random.expovariate(1 / 0.012)


class Engine:
    """vLLM's offline engine with the few calls the cells need."""

    def __init__(self, options: argparse.Namespace) -> None:
        from vllm import LLM

        strict = options.profile == "strict"
        settings: dict[str, Any] = {}
        if options.attention:
            settings["attention_config"] = {"backend": options.attention}
        if options.max_num_seqs:
            settings["max_num_seqs"] = options.max_num_seqs
        if options.kv_cache_gib:
            settings["kv_cache_memory_bytes"] = int(options.kv_cache_gib * 2**30)
        started = time.monotonic()
        self.llm = LLM(
            model=options.model,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            seed=42,
            max_model_len=options.max_model_len,
            enforce_eager=options.eager,
            max_num_batched_tokens=8192,
            gpu_memory_utilization=options.utilization,
            enable_prefix_caching={"": not strict, "on": True, "off": False}[options.prefix_caching],
            **settings,
        )
        self.tokens = options.tokens
        self.start_seconds = time.monotonic() - started
        self.vocabulary = int(self.llm.llm_engine.vllm_config.model_config.get_vocab_size())

    def params(self, sampling: str, tokens: int | None = None, logprobs: int | None = 2, **more: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=tokens or self.tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            logprobs=logprobs,
            **{**SAMPLING.get(sampling, {"temperature": 0.8}), **more},
        )

    def generate(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[Any]:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        return list(self.llm.generate(inputs, list(params), use_tqdm=False))

    def step_through(self, arrivals: Iterator[tuple[str, Prompt, Any] | None]) -> dict[str, Any]:
        """Feed requests while others run: one arrival (or None) before each step. Finished outputs by id."""
        core = self.llm.llm_engine
        finished: dict[str, Any] = {}
        names: dict[str, str] = {}
        waiting = True
        while waiting or core.has_unfinished_requests():
            arrival = None
            if waiting:
                try:
                    arrival = next(arrivals)
                except StopIteration:
                    waiting = False
            if arrival is not None:
                name, prompt, params = arrival
                # Newer engines give back an id of their own.
                names[core.add_request(name, {"prompt_token_ids": prompt}, params) or name] = name
                names[name] = name
            for output in core.step() if core.has_unfinished_requests() else ():
                if output.finished:
                    finished[names[output.request_id]] = output
        return finished


def answer_of(output: Any) -> Answer:
    completion = output.outputs[0]
    tokens = tuple(completion.token_ids)
    best = [sorted((entry.logprob for entry in row.values()), reverse=True) for row in completion.logprobs]
    return Answer(
        tokens=tokens,
        logprobs=tuple(row[token].logprob for row, token in zip(completion.logprobs, tokens, strict=True)),
        margins=tuple(row[0] - row[1] for row in best),
    )


class Cells:
    """Fills the table, comparing each answer with the target's first answer alone."""

    def __init__(self, engine: Engine, work: Workload) -> None:
        self.engine, self.work = engine, work
        self.references: dict[tuple[str, int], Answer] = {}
        self.table: list[Cell] = []

    def run(self, company: str, sampling: str, repeats: int) -> Cell:
        make: Callable[[str], list[tuple[int, Answer]]] = {
            "alone": self._alone,
            "staggered": self._staggered,
            "prefill joins": self._prefill_joins,
        }.get(company, lambda sampling: self._batch(int(company), sampling))
        cell, started = Cell(company, sampling), time.monotonic()
        seen: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        for _ in range(repeats):
            for target, answer in make(sampling):
                reference = self.references.setdefault((sampling, target), answer)
                seen[target] |= {reference.tokens, answer.tokens}
                cell.runs += 1
                cell.same_tokens += answer.tokens == reference.tokens
                cell.same_bits += (answer.tokens, answer.logprobs) == (reference.tokens, reference.logprobs)
                if answer.tokens != reference.tokens:
                    pairs = enumerate(zip(answer.tokens, reference.tokens, strict=True))
                    position = next(index for index, (a, b) in pairs if a != b)
                    cell.forks.append((target, position, round(reference.margins[position], 4)))
        cell.distinct = [len(seen[target]) for target in sorted(seen)]
        cell.seconds = round(time.monotonic() - started, 1)
        self.table.append(cell)
        fork = f" first fork {min(p for _, p, _ in cell.forks)}" if cell.forks else ""
        print(
            f"CELL {sampling:12} {company:13} runs {cell.runs:4} tokens {cell.same_tokens:4} "
            f"bits {cell.same_bits:4} distinct {cell.distinct} {cell.seconds}s{fork}",
            flush=True,
        )
        return cell

    def _alone(self, sampling: str) -> list[tuple[int, Answer]]:
        params = self.engine.params(sampling)
        return [
            (target, answer_of(self.engine.generate([prompt], [params])[0]))
            for target, prompt in enumerate(self.work.targets)
        ]

    def _request(self, place: int | None, sampling: str) -> tuple[Prompt, Any]:
        if place is not None:
            return self.work.targets[place], self.engine.params(sampling)
        kind = "greedy" if self.work.neighbour_length() % 2 else "unseeded"
        return self.work.neighbour(), self.engine.params(kind, self.work.neighbour_length(), logprobs=None)

    def _batch(self, size: int, sampling: str) -> list[tuple[int, Answer]]:
        places = self.work.shuffled(size)
        requests = [self._request(place, sampling) for place in places]
        outputs = self.engine.generate([prompt for prompt, _ in requests], [params for _, params in requests])
        return [
            (place, answer_of(out)) for place, out in zip(places, outputs, strict=True) if place is not None
        ]

    def _staggered(self, sampling: str) -> list[tuple[int, Answer]]:
        """64 requests, each arriving a random moment after the one before, while the others decode."""
        places = self.work.shuffled(64)

        def arrivals() -> Iterator[tuple[str, Prompt, Any] | None]:
            for number, place in enumerate(places):
                yield (f"staggered-{number}", *self._request(place, sampling))
                due = time.monotonic() + self.work.pause()
                while time.monotonic() < due:
                    yield None

        finished = self.engine.step_through(arrivals())
        return [
            (place, answer_of(finished[f"staggered-{number}"]))
            for number, place in enumerate(places)
            if place is not None
        ]

    def _prefill_joins(self, sampling: str) -> list[tuple[int, Answer]]:
        """16 targets decode; every eighth step the prefill of a stranger's long prompt shares their step."""
        places = [number % len(self.work.targets) for number in range(16)]

        def arrivals() -> Iterator[tuple[str, Prompt, Any] | None]:
            for number, place in enumerate(places):
                yield (f"target-{number}", *self._request(place, sampling))
            for number in range(30):
                yield from [None] * 7
                prompt = self.work.random(200 + 97 * number)
                yield f"stranger-{number}", prompt, self.engine.params("unseeded", 4, logprobs=None)

        finished = self.engine.step_through(arrivals())
        return [(place, answer_of(finished[f"target-{number}"])) for number, place in enumerate(places)]


def prefill_against_decode(engine: Engine, work: Workload, tokens: int) -> dict[str, Any]:
    """Log-probabilities of a long answer as it was decoded, against one prefill of prompt and answer."""
    prompt = work.targets[0]
    started = time.monotonic()
    answer = answer_of(engine.generate([prompt], [engine.params("greedy", tokens)])[0])
    decode_seconds = time.monotonic() - started
    check = engine.params("greedy", 1, logprobs=None, prompt_logprobs=1)

    def equal(output: Any) -> int:
        rows = output.prompt_logprobs[len(prompt) :]
        values = [row[token].logprob for row, token in zip(rows, answer.tokens, strict=True)]
        return sum(a == b for a, b in zip(values, answer.logprobs, strict=True))

    whole = prompt + list(answer.tokens)
    started = time.monotonic()
    alone = equal(engine.generate([whole], [check])[0])
    check_seconds = time.monotonic() - started
    prompts = [work.neighbour() for _ in range(31)]
    params = [engine.params("unseeded", 64, logprobs=None) for _ in prompts]
    among = equal(
        engine.generate([*prompts[:16], whole, *prompts[16:]], [*params[:16], check, *params[16:]])[16]
    )
    return {
        "tokens": len(answer.tokens),
        "equal_bits_alone": alone,
        "equal_bits_among_31": among,
        "distinct_tokens": len(set(answer.tokens)),
        "decode_seconds": round(decode_seconds, 2),
        "prefill_seconds": round(check_seconds, 3),
    }


def cost(engine: Engine, work: Workload, counts: Sequence[int], repeats: int) -> dict[str, Any]:
    """Speed with greedy requests of 128 prompt tokens and 256 new ones; each list holds repeated readings."""

    def rate(requests: int) -> float:
        prompts = [work.random(128) for _ in range(requests)]
        started = time.monotonic()
        engine.generate(prompts, [engine.params("greedy", logprobs=None)] * requests)
        return round(requests * engine.tokens / (time.monotonic() - started), 1)

    def seconds(length: int, tokens: int) -> float:
        prompt = work.random(length)
        started = time.monotonic()
        engine.generate([prompt], [engine.params("greedy", tokens, logprobs=None)])
        return time.monotonic() - started

    rate(1)
    long_context = (seconds(3500, 136) - seconds(3500, 8)) / 128
    return {
        "tokens_per_second": {str(requests): [rate(requests) for _ in range(repeats)] for requests in counts},
        "first_token_ms_of_1024": [round(1000 * seconds(1024, 1), 2) for _ in range(9)],
        "ms_per_token_after_3500": round(1000 * long_context, 3),
        "gpu_memory_mib": gpu_query("memory.used"),
    }


def start_trace(worker: Any) -> None:
    from torch.profiler import ProfilerActivity, profile

    worker.encore_trace = profile(activities=[ProfilerActivity.CUDA])
    worker.encore_trace.start()


def stop_trace(worker: Any) -> dict[str, Any]:
    """Kernel time by name, in microseconds, and the span from the first launch to the last end."""
    import torch

    torch.cuda.synchronize()
    worker.encore_trace.stop()
    events = [e for e in worker.encore_trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    kernels: dict[str, list[float]] = {}
    for event in events:
        total = kernels.setdefault(event.name, [0.0, 0])
        total[0] += event.time_range.elapsed_us()
        total[1] += 1
    span = max(e.time_range.end for e in events) - min(e.time_range.start for e in events)
    return {"span_us": span, "kernels": kernels}


def decode_step(engine: Engine, work: Workload, requests: int, steps: int = 64) -> dict[str, Any]:
    """Where one decode step spends its time, averaged over `steps` steps: microseconds by kernel."""
    prompts = [work.random(128) for _ in range(requests)]
    engine.llm.collective_rpc(start_trace)
    engine.generate(prompts, [engine.params("greedy", steps, logprobs=None)] * requests)
    trace = engine.llm.collective_rpc(stop_trace)[0]
    ordered = sorted(trace["kernels"].items(), key=lambda item: -item[1][0])
    return {
        "requests": requests,
        "span_us_per_step": round(trace["span_us"] / steps, 1),
        "busy_us_per_step": round(sum(total for _, (total, _) in ordered) / steps, 1),
        "kernels": [
            [name[:90], round(total / steps, 1), round(n / steps, 2)] for name, (total, n) in ordered[:24]
        ],
    }


def gpu_query(field_name: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={field_name}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def environment(options: argparse.Namespace) -> dict[str, Any]:
    import torch
    import triton
    import vllm

    names = (
        "VLLM_BATCH_INVARIANT",
        "VLLM_USE_FLASHINFER_SAMPLER",
        "ENCORE_STRICT_GEMM",
        "ENCORE_STRICT_ATTENTION",
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": gpu_query("name"),
        "driver": gpu_query("driver_version"),
        "python": platform.python_version(),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "model": options.label or Path(options.model).name,
        "profile": options.profile,
        "attention": options.attention or "default",
        "settings": {
            "eager": options.eager,
            "prefix_caching": options.prefix_caching or "as in the profile",
            "max_num_seqs": options.max_num_seqs or "default",
            "max_model_len": options.max_model_len,
            "answer_tokens": options.tokens,
        },
        "variables": {name: os.environ.get(name) for name in names},
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--label", help="how results name the model, for example 'random weights'")
    parser.add_argument(
        "--profile", choices=("strict", "fast"), required=True, help="fast keeps prefix caching"
    )
    parser.add_argument("--attention", default="", help="attention backend, for example TRITON_ATTN")
    parser.add_argument("--prompts", type=Path, help="JSON with token ids: targets and others")
    parser.add_argument("--plan", default="alone:3,2:12,8:8,32:8,128:2,staggered:4,prefill joins:4")
    parser.add_argument("--sampling", default="greedy,seeded")
    parser.add_argument(
        "--check-tokens", type=int, default=0, help="length of the prefill-against-decode check"
    )
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--trace", action="store_true", help="profile decode steps of 1 and 32 requests")
    parser.add_argument("--cost-requests", default="1,32,128")
    parser.add_argument("--cost-repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="length of every compared answer")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument(
        "--prefix-caching", choices=("", "on", "off"), default="", help="instead of the profile's"
    )
    parser.add_argument("--max-num-seqs", type=int, default=0)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--utilization", type=float, default=0.5)
    parser.add_argument("--kv-cache-gib", type=float, default=0.0, help="for engines that share a card")
    parser.add_argument(
        "--turn", type=Path, help="a lock file: engines start side by side and measure one after another"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    options = parse()
    began = time.monotonic()
    result: dict[str, Any] = {"machine": environment(options)}
    engine = Engine(options)
    work = Workload(engine.vocabulary, options.prompts)
    cells = Cells(engine, work)
    result["start_seconds"] = round(engine.start_seconds, 1)
    print(f"START {options.out.stem} {result['start_seconds']}s", flush=True)
    if options.turn:
        turn = options.turn.open("w")
        fcntl.flock(turn, fcntl.LOCK_EX)  # held until this process ends
        print(f"TURN {options.out.stem} after {time.monotonic() - began:.0f}s", flush=True)
    report = os.environ.get("ENCORE_STRICT_GEMM_REPORT")
    if report and Path(report).exists():
        result["linear"] = json.loads(Path(report).read_text())

    def save() -> None:
        result["cells"] = [asdict(cell) for cell in cells.table]
        result["references"] = {
            f"{sampling}/{target}": hashlib.sha256(repr(answer).encode()).hexdigest()[:16]
            for (sampling, target), answer in cells.references.items()
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n")

    if options.cost:
        counts = [int(count) for count in options.cost_requests.split(",")]
        result["cost"] = cost(engine, work, counts, options.cost_repeats)
        print("COST", result["cost"], flush=True)
        save()
    for sampling in filter(None, options.sampling.split(",")):
        for company, repeats in (part.split(":") for part in options.plan.split(",")):
            cells.run(company, sampling, int(repeats))
            save()
    if options.check_tokens:
        result["prefill_against_decode"] = prefill_against_decode(engine, work, options.check_tokens)
        print("CHECK", result["prefill_against_decode"], flush=True)
    if options.trace:
        result["decode_step"] = [decode_step(engine, work, requests) for requests in (1, 32)]
        for step in result["decode_step"]:
            print("STEP", step["requests"], step["span_us_per_step"], step["busy_us_per_step"], flush=True)
            print(
                *(f"  {us:8} us x{n:6}  {name}" for name, us, n in step["kernels"][:14]), sep="\n", flush=True
            )
    save()


if __name__ == "__main__":
    main()
