"""What a machine can do: its GPUs, the precision they compute in, and what fits one of them."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path

import torch

from mars.models.files import tensors_of, weight_files

SHARE_OF_MEMORY = 0.8
"""Weights above this share of a GPU's memory leave too little room for keys and activations."""


def choose_dtype(wanted: str, device: str) -> str:
    """The precision asked for; of "auto", bfloat16 where the device computes in it, else float32.

    Args:
        wanted: auto, or the name of a torch dtype.
        device: cpu, cuda, …
    """
    if wanted != "auto":
        return wanted
    able = device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if able else "float32"


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, each as CUDA_VISIBLE_DEVICES names it."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [part.strip() for part in named.split(",") if part.strip()]
    return (names or [str(number) for number in range(count)])[:count]


def weight_bytes(folder: Path, dtype: torch.dtype) -> int:
    """What a checkpoint's weights take in memory in a precision."""
    shapes = (t["shape"] for file in weight_files(folder) for t in tensors_of(file).values())
    return sum(map(prod, shapes)) * dtype.itemsize


def spreads(folder: Path, dtype: torch.dtype, device: str) -> bool:
    """Whether a model goes onto several GPUs: there are some, and one is too small for it."""
    if device != "cuda" or torch.cuda.device_count() < 2:
        return False
    memory = torch.cuda.get_device_properties(0).total_memory
    return weight_bytes(folder, dtype) > SHARE_OF_MEMORY * memory
