"""The columns of a study's typed frames: dtype and meaning of each."""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """A documented column."""

    dtype: str
    meaning: str


THROUGHPUT: dict[str, Field] = {
    "study": Field("category", "the study's name"),
    "seed": Field("int32", "of replayed acceptance and lengths"),
    "scale": Field("category", "of both checkpoints, e.g. toy-m"),
    "benchmark": Field("category", "whose prompts are decoded"),
    "part": Field("category", "grid; batching: static against continuous"),
    "acceptance": Field("category", "model; replayed: drawn, and forced on every method"),
    "batch_size": Field("int32", "rows of a batch; of part batching: rows in flight"),
    "method": Field("category", "generate, generate_static (transformers'), ar, mars, released"),
    "cache": Field("category", "dynamic, static (transformers'); none, block, cursor (ours)"),
    "cache_block": Field("Int32", "B_cache, only with cache block"),
    "block_size": Field("int32", "B: tokens drafted a step; 1 for AR"),
    "tau": Field("float64", "threshold; missing where nothing drafts or acceptance is replayed"),
    "draft": Field("category", "B, auto; missing where nothing is drafted"),
    "scheduling": Field("category", "static, continuous"),
    "linears": Field("category", "stock, packed (oneDNN)"),
    "repeat": Field("int32", "0, 1, …: in each, every method has a turn"),
    "prompts": Field("int32", "decoded in the run"),
    "max_new_tokens": Field("int32", "of the longest response"),
    "seconds": Field("float64", "of the run"),
    "first_token_seconds": Field("float64", "median over batches, in runs apart that end there"),
    "prefill_seconds": Field("float64", "the same, summed over the batches"),
    "decode_tokens_per_s": Field("float64", "of the rest; missing: no token follows the first"),
    "tokens": Field("int32", "kept, of all prompts"),
    "tokens_per_s": Field("float64", "of the whole run"),
    "forwards": Field("int32", "that rows took part in, summed over the rows"),
    "tokens_per_forward": Field("float64", "tokens ÷ forwards"),
    "model_forwards": Field("int32", "of the batch"),
    "model_tokens": Field("int64", "columns that went through the model, padding included"),
    "gflops_per_s": Field("float64", "achieved, of the work counted"),
    "gbytes_per_s": Field("float64", "achieved, of the memory traffic counted"),
    "peak_gflops_per_s": Field("float64", "the machine's ceiling, measured"),
    "peak_gbytes_per_s": Field("float64", "the machine's ceiling, measured"),
    "peak_memory_mb": Field(
        "float64", "weights, cache, activations; on a GPU of all that is loaded"
    ),
    "checkpoint": Field("category", "hash of the checkpoint that answered"),
}
"""Of ``throughput.csv`` and ``throughput.parquet``, in order: a row per run of a method."""
