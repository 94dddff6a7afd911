"""The guide's section 4 and 5.1 with what vLLM really has: one answer, three times, compared by token ids.

    .venv-engine/bin/python docs/guide_example.py MODEL

Run by the engine's interpreter. Exit code 0 when all three agree. Alone in its engine, that is the easy
case: `encore replay --neighbours` and `encore verify` ask the harder question.
"""

import sys

from vllm import LLM, SamplingParams

SEED = 42


def main() -> int:
    llm = LLM(
        model=sys.argv[1],
        seed=SEED,  # torch, NumPy and random in every worker; not the requests
        tensor_parallel_size=1,
        dtype="bfloat16",
        max_model_len=4096,
        generation_config="vllm",  # else the model's own temperature fills in what a request leaves out
        enable_prefix_caching=False,
        # On a GPU: VLLM_BATCH_INVARIANT=1 in the environment, and never enforce_eager=True beside it.
        # On a CPU, one sequence at a time and no compilation, which there is only slower to start.
        max_num_seqs=1,
        enforce_eager=True,
    )
    sampling = SamplingParams(
        temperature=0.0,  # greedy: there is no do_sample
        seed=SEED,  # used as soon as the temperature is not 0
        max_tokens=64,
        logprobs=1,
    )
    messages = [{"role": "user", "content": "请解释勾股定理，并给出一个例子"}]
    runs = [llm.chat(messages, sampling, use_tqdm=False)[0].outputs[0] for _ in range(3)]
    print(runs[0].text)
    same = [run.token_ids == runs[0].token_ids and run.logprobs == runs[0].logprobs for run in runs]
    print(f"{sum(same)} of {len(same)} identical in tokens and log-probabilities", file=sys.stderr)
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
