"""vLLM entry point: prove while the weights load, then serve the linear layers with cuBLAS, or step aside."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from encore_strict_gemm.gate import ATTENTION_SWITCH, REPORT, Gate, switched_on
from encore_strict_gemm.proof import Proof, Shape

# A child of vLLM's logger, so its lines land in the engine's log with the engine's format.
_log = logging.getLogger("vllm.encore_strict_gemm")
_PROVEN = "encore_strict_gemm_proven"


def register() -> None:
    """Called by vLLM once in each of its processes."""
    on, complaint = switched_on(os.environ)
    if complaint is not None:
        _log.warning("%s", complaint)
    if on:
        _Installation().install()


class _Installation:
    """Wraps the two classes through which vLLM runs every unquantised linear layer and the output head."""

    def __init__(self) -> None:
        from vllm.model_executor.layers.linear import UnquantizedLinearMethod
        from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

        self.gate = Gate(on_refusal=self._restore)
        self._originals = {
            method: (method.apply, method.process_weights_after_loading)
            for method in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
        }

    def install(self) -> None:
        for method, (apply, process) in self._originals.items():
            method.apply = _serving(apply)
            method.process_weights_after_loading = self._proving(process)

    def _restore(self) -> None:
        # The original methods, not a flag in ours: torch.compile keys its cache by the source files it
        # traced, so a refused engine must not look like an accepted one.
        for method, (apply, process) in self._originals.items():
            method.apply = apply
            method.process_weights_after_loading = process

    def _proving(self, process: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def process_and_prove(method: Any, layer: Any) -> None:
            process(method, layer)
            self._prove(layer)

        return process_and_prove

    def _prove(self, layer: Any) -> None:
        import torch
        from vllm.config import get_current_vllm_config

        from encore_strict_gemm.linear import prove_weight, shape_of
        from encore_strict_gemm.sampling import pin_and_prove

        config = get_current_vllm_config()
        if self.gate.top_p_pinned is None and layer.weight.is_cuda:
            vocabulary = int(config.model_config.get_vocab_size())
            self.gate.check_top_p(lambda: pin_and_prove(vocabulary, layer.weight.device))
            self._check_attention(config, layer.weight)
            torch.cuda.empty_cache()
            self._say_top_p()
        shape = shape_of(layer.weight)
        if shape is None or not layer.weight.is_cuda:
            return
        if torch.cuda.get_device_capability(layer.weight.device) < (8, 9):
            # There vLLM's mode replaces torch.mm itself, so a check would prove Triton against Triton.
            self.gate.admit(shape, _unsupported)
            self._say(shape, 0.0)
            return
        limit = config.scheduler_config.max_num_batched_tokens
        new, started = shape not in self.gate.proofs, time.monotonic()
        setattr(layer, _PROVEN, self.gate.admit(shape, lambda: prove_weight(layer.weight, limit)))
        if new:
            # Otherwise vLLM counts the check's buffers when it sizes the KV cache.
            torch.cuda.empty_cache()
            self._say(shape, time.monotonic() - started)

    def _say(self, shape: Shape, seconds: float) -> None:
        if self.gate.refusal is not None:
            _log.error(
                "strict GEMM refused; every linear layer stays on vLLM's Triton kernel: %s", self.gate.refusal
            )
        else:
            _log.info(
                "strict GEMM: cuBLAS row-count invariant for %s (%d batches of up to %d rows, %.1f s)",
                shape,
                self.gate.proofs[shape].batches,
                self.gate.proofs[shape].limit,
                seconds,
            )
        self._write_report()

    def _check_attention(self, config: Any, weight: Any) -> None:
        """Serve the Triton attention backend from segments, once the card has shown that they add up."""
        if os.environ.get(ATTENTION_SWITCH) != "segments":
            return
        from vllm.v1.attention.backends import triton_attn

        from encore_strict_gemm.attention import attend, prove_attention
        from encore_strict_gemm.plain import serving

        model, parallel = config.model_config, config.parallel_config

        def prove() -> str | None:
            return prove_attention(
                model.get_num_attention_heads(parallel),
                model.get_num_kv_heads(parallel),
                model.get_head_size(),
                16,
                weight.dtype,
                weight.device,
            )

        def first_use(served: bool) -> None:
            self.gate.attention = "segments" if served else "vllm"
            self._write_report()

        if self.gate.check_attention(prove):
            triton_attn.unified_attention = serving(triton_attn.unified_attention, attend, first_use)
            _log.info(
                "strict attention: cut at fixed places, same bits whole and split, alone and in company"
            )
        else:
            _log.error(
                "strict attention refused; contexts stay in one piece: %s", self.gate.attention_refusal
            )

    def _say_top_p(self) -> None:
        if self.gate.top_p_pinned:
            _log.info("strict sampling: top-p pinned to one kernel, same tokens kept in every company tried")
        else:
            _log.error("strict sampling refused; top-p depends on company: %s", self.gate.top_p_refusal)
        self._write_report()

    def _write_report(self) -> None:
        report = os.environ.get(REPORT)
        if report:
            Path(report).write_text(json.dumps(self.gate.report(), indent=1) + "\n")


def _unsupported() -> Proof:
    raise RuntimeError("needs compute capability 8.9 or newer")


def _serving(apply: Callable[..., Any]) -> Callable[..., Any]:
    from encore_strict_gemm.linear import linear

    def apply_proven(method: Any, layer: Any, x: Any, bias: Any = None) -> Any:
        if not getattr(layer, _PROVEN, False):
            return apply(method, layer, x, bias)
        product = linear(x, layer.weight)
        return product if bias is None else product + bias

    return apply_proven
