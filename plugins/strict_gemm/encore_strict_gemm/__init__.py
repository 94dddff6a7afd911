"""Batch-invariant linear layers on cuBLAS, for vLLM's `VLLM_BATCH_INVARIANT=1`, proven at every engine start.

vLLM sends every linear layer of that mode through one Triton kernel with fixed tiles, which costs most of
the mode's speed. Under the same mode's cuBLAS settings (no split-K), cuBLAS itself can be *row-count
invariant*: row i of the product has the same bits however many other rows are in the batch. That depends on
the card, the library and the shapes, so this plugin never assumes it: while the weights load it checks each
of the model's own linear shapes, and one difference in one bit keeps the Triton kernel for all of them.
"""
