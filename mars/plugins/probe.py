"""One look at each plug-in at work: a tiny random model, two conversations, milliseconds.

What an objective or a decoder owes to training, evaluation and to a run that is resumed is checked
here, since it would otherwise show after hours, or not at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from mars.config import ALIGNMENTS, DECODERS, Decoding, Study, Variant
from mars.data import Encoded
from mars.decoding import DECODERS as DECODER_CLASSES
from mars.decoding import Generation, Request, make_decoder
from mars.plugins.files import PluginError
from mars.plugins.load import own_errors
from mars.streams import Layout
from mars.training.objectives import REGISTRY, Batch, Objective, Setup, Terms
from mars.training.trainer import learns

VOCABULARY, END, MASK = 64, 1, 63
BUDGET = 12


def probe_plugins(study: Study, source: str) -> list[str]:
    """Try the plug-ins of every variant that uses one; they are loaded already.

    Args:
        study: the study.
        source: its file, for messages.

    Returns:
        What was tried, a line each.

    Raises:
        PluginError: one line naming the variant and what its plug-in missed.
    """
    lines = []
    for name, variant in study.variants.items():
        if variant.objective is not None and variant.objective not in ALIGNMENTS:
            probe_objective(variant, f"{source}: variants.{name}.objective: {variant.objective!r}")
            lines.append(f"variants.{name}.objective: {variant.objective} learns")
        if variant.decoder not in DECODERS:
            found = [s for b in study.evaluation.benchmarks for s in study.decodings(name, b)]
            mine = [made for made in dict.fromkeys(found) if made.decoder == variant.decoder]
            where = f"{source}: variants.{name}.decoder: {variant.decoder!r}"
            for settings in mine:
                probe_decoder(settings, where)
            lines.append(f"variants.{name}.decoder: {variant.decoder} decodes")
    return lines


def probe_objective(variant: Variant, where: str) -> None:
    """Lay out two conversations, pack them, and take the gradient of their loss once."""
    kind = REGISTRY[str(variant.objective)]
    path = Path(inspect.getfile(kind)).resolve()
    setup = Setup(
        block_size=variant.block_size,
        ar_weight=variant.ar_weight,
        alignment=variant.alignment,
        mask_id=MASK,
        end_id=END,
        pad_id=END,
        seed=0,
    )
    with own_errors(path, where, f"{kind.__name__} fails on a probe batch"):
        objective = kind(setup)
        examples, keys = [_conversation(23), _conversation(14)], [(0, 3), (1, 5)]
        layouts = [objective.row(*pair) for pair in zip(examples, keys, strict=True)]
        for pair, layout in zip(zip(examples, keys, strict=True), layouts, strict=True):
            _check_row(objective, *pair, layout, where)
        model = _model(torch.float32)
        plain = objective.loss(model, objective.collate(examples, keys))
        _check_terms(plain, where)
        batch = objective.batch([layouts], keys)
        if not (isinstance(batch, Batch) and batch.counts.response_tokens > 0):
            raise PluginError(
                f"{where}: batch() must give a Batch whose counts have response_tokens: losses "
                "are divided by them"
            )
        with learns(model, objective):
            total = model(batch)[0]
            _check_gradient(model, total, where)
        total, alone = float(total.detach()), float(plain.total(setup.ar_weight).detach())
    if abs(total - alone) > 1e-3 * max(abs(alone), 1.0):
        raise PluginError(
            f"{where}: loss() is {total:g} for two conversations packed in one row and {alone:g} "
            "for a row each: predicate must keep conversations apart (& mars.streams.same_document)"
        )


def _check_row(
    objective: Objective, example: Encoded, key: tuple[int, int], layout: Any, where: str
) -> None:
    if not isinstance(layout, Layout):
        raise PluginError(f"{where}: row() must give a mars.streams.Layout, not {layout!r}")
    if layout.input_ids.ndim != 2 or len(layout.input_ids) != 1:
        raise PluginError(f"{where}: row() must give one row, (1, S), not {tuple(layout.shape)}")
    again = objective.row(example, key)
    names = [field.name for field in fields(Layout)]
    if not all(torch.equal(getattr(layout, n), getattr(again, n)) for n in names):
        raise PluginError(
            f"{where}: row() gave two layouts for one key: draw from (setup.seed, *key) only, or "
            "a resumed run is another run"
        )
    needed, said = int(layout.position.max()) + 1, objective.padded(len(example))
    if needed > said:
        raise PluginError(
            f"{where}: padded({len(example)}) is {said}, but row() used {needed} positions"
        )


def _check_terms(terms: Any, where: str) -> None:
    if not isinstance(terms, Terms) or (terms.ar is None and terms.mask is None):
        raise PluginError(f"{where}: loss() must give Terms with ar, mask or both, not {terms!r}")
    for name, value in (("ar", terms.ar), ("mask", terms.mask)):
        if value is not None and not (isinstance(value, torch.Tensor) and value.ndim == 0):
            raise PluginError(f"{where}: loss().{name} must be a 0-dim tensor, a sum over tokens")
        if value is not None and not torch.isfinite(value):
            raise PluginError(f"{where}: loss().{name} is {float(value.detach())} on a probe batch")


def _check_gradient(model: Any, total: torch.Tensor, where: str) -> None:
    if not total.requires_grad:
        raise PluginError(f"{where}: loss() has no gradient: keep it on the graph (no detach())")
    total.backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    if not all(bool(torch.isfinite(grad).all()) for grad in found):
        raise PluginError(f"{where}: the gradient of loss() is not finite on a probe batch")
    if not any(bool(grad.any()) for grad in found):
        raise PluginError(f"{where}: the gradient of loss() is zero on a probe batch")


def probe_decoder(settings: Decoding, where: str) -> None:
    """Decode three prompts under one of the settings that the study asks for."""
    kind = DECODER_CLASSES[settings.decoder]
    path = Path(inspect.getfile(kind)).resolve()
    where = f"{where}: at τ = {settings.tau:g}, B = {settings.block_size}"
    if settings.tau != 1 and not kind.thresholded:
        raise PluginError(
            f"{where}: it has no threshold (thresholded = False); set thresholds: [1.0] there"
        )
    requests = [Request(tuple(range(2, 2 + length)), BUDGET) for length in (5, 9, 7)]
    with own_errors(path, where, f"{kind.__name__} fails on three probe prompts"), torch.no_grad():
        decoder = make_decoder(_model(torch.float64), None, settings, mask_id=MASK, end_ids=(END,))
        made = decoder.generate(requests, slots=2)
    problem = next(_wrong(made), None)
    if problem:
        raise PluginError(f"{where}: generate() {problem}")


def _wrong(made: Any) -> Iterator[str]:
    """What of three generations breaks the contract (``mars.decoding.contract``)."""
    if not (isinstance(made, list) and [type(g) for g in made] == [Generation] * 3):
        yield f"must give a Generation for each of 3 requests, not {made!r}"
        return
    for generation in made:
        count = len(generation.ids)
        if not 0 < count <= BUDGET:
            yield f"gave {count} tokens for a budget of {BUDGET}"
        if MASK in generation.ids:
            yield "emitted [MASK]"
        if END in generation.ids[:-1]:
            yield "kept tokens after the end of the turn"
        if sum(generation.accepted) != count or len(generation.confidence) != count:
            yield "must give accepted counts that sum to its tokens, and a confidence for each"


def _conversation(length: int) -> Encoded:
    """Two turns, the second one ended."""
    turn = torch.full((length,), -1)
    turn[3 : length // 2] = 0
    turn[length // 2 + 2 :] = 1
    ids = 2 + (7 * torch.arange(length)) % (VOCABULARY - 4)
    ids[length // 2 - 1] = ids[-1] = END
    return Encoded(ids, turn >= 0, turn, ended=True)


def _model(dtype: torch.dtype) -> Any:
    """Two layers, random but always the same, confident now and then."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            initializer_range=0.3,
            eos_token_id=END,
            pad_token_id=END,
            bos_token_id=None,
            attn_implementation="sdpa",
        )
        return Qwen2ForCausalLM(shape).to(dtype).eval()
