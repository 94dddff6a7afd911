"""Attention weights at the last positions of a recorded answer, layer by layer, in several passes.

vLLM's kernels never write attention weights down, so they are computed by transformers' eager attention
(`attn_implementation="eager"`) on the same weights: prompt and answer in one forward pass,

    once       the reference
    again      the same input once more
    together   the input beside a copy of itself, as a batch of two

This shows whether the weights and this machine's arithmetic repeat. It is another implementation than
the serving engine's, and says nothing about that one's kernels.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found]  # only in the engine's environment
from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]

from llm_backend.offline.passes import Channel, compare, digest, load, save, serve


def work(job: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """`job`: model, device, dtype, prompt, answer (token ids), last, receipt, save, against."""
    sequence = [*job["prompt"], *job["answer"]]
    last = min(job["last"], len(job["answer"]))
    about = {"kind": "attention", "receipt": job["receipt"], "positions": last}
    kept = load(job["against"], about) if job["against"] else None
    channel.stage("load", 0, 1)
    model = AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=getattr(torch, job["dtype"]), attn_implementation="eager"
    )
    model.to(job["device"]).eval()
    given = torch.tensor([sequence], device=job["device"])
    passes: dict[str, torch.Tensor] = {}
    inputs = {"once": given, "again": given, "together": given.expand(2, -1)}
    for done, (name, tokens) in enumerate(inputs.items()):
        channel.stage(name, done, len(inputs))
        passes[name] = weights(model, tokens, last)
    reference = passes.pop("once")
    layers = list(range(len(reference)))
    compared = {name: compare(layers, reference, other) for name, other in passes.items()}
    if kept is not None:
        compared["kept"] = compare(layers, kept, reference)
    if job["save"]:
        save(job["save"], reference, about)
    return {
        "heads": reference.shape[1],
        "tokens": len(sequence),
        "positions": last,
        "digest": digest(reference),
        "digests": [digest(layer) for layer in reference],
        "passes": compared,
    }


def weights(model: Any, tokens: torch.Tensor, last: int) -> torch.Tensor:
    """Shape (layers, heads, last, tokens): how much each of the last positions looks at every other.

    Taken by hooks as each layer ends: all layers' full matrices would grow with the square of the length.
    """
    kept: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        kept.append(output[1][0, :, -last:].cpu())

    hooks = [layer.self_attn.register_forward_hook(keep) for layer in model.model.layers]
    try:
        with torch.inference_mode():
            model(tokens, use_cache=False, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(kept)


if __name__ == "__main__":
    serve(work)
