"""Turn a Llama-architecture GGUF file into a folder that vLLM serves: bf16 safetensors and tokenizer.

Run as a file by the engine's interpreter (it has torch, transformers, gguf and accelerate):

    python convert_gguf.py MODEL.gguf FOLDER

vLLM on CPU cannot read GGUF itself, and transformers marks the model it loads as still quantised and
refuses to save it; so the dequantised tensors are copied into a plain `LlamaForCausalLM`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch  # type: ignore[import-not-found]  # only in the engine's environment
from transformers import (  # type: ignore[import-not-found]
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)


def convert(gguf: Path, folder: Path) -> None:
    """Write config, generation config, weights, tokenizer and chat template into `folder`."""
    source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    settings = source.config.to_dict()
    settings.pop("quantization_config", None)
    plain = LlamaForCausalLM(LlamaConfig.from_dict(settings)).to(torch.bfloat16)
    plain.load_state_dict(source.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Convert a GGUF file to bf16 safetensors.")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    convert(options.gguf, options.folder)
