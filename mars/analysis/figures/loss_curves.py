"""Loss curves of every run: the AR term and the masked term."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from mars.analysis import labels
from mars.analysis.figures import style
from mars.analysis.results import load_training, of_every_seed
from mars.config import Study

TITLE = "Training loss"
ALT = (
    "Training loss against examples seen: the next-token term at left, the masked-block term at "
    "right, one row a scale, one line a variant."
)
TERMS = {"loss_ar": "L_AR (next token, clean stream)", "loss_mask": "L_mask (masked stream)"}
SMOOTH = 5

DASHES: dict[tuple[bool, str], style.Dashes] = {
    (True, "decoder"): "-",
    (True, "stream"): (0, (5, 1.5, 1, 1.5)),
    (False, "decoder"): (0, (4, 2)),
    (False, "stream"): (0, (1, 1.5)),
}
"""Of MARS, by whether it has the SFT loss, and its alignment."""


def data(study: Study, results: Path) -> pd.DataFrame:
    """Columns: scale, variant, examples, loss_ar, loss_mask; means over seeds, smoothed."""
    curves = of_every_seed(study, load_training(study, results), ["scale", "variant"])
    keys = ["scale", "variant", "step"]
    values = ["examples", "loss_ar", "loss_mask"]
    made = [study.variants[v] for v in curves["variant"]]
    # where the objective has a single term, its total is that term
    for i, (term, objective) in enumerate((("loss_ar", "ar_sft"), ("loss_mask", "mars"))):
        alone = [m.objective == objective and (i == 0 or m.ar_weight == 0) for m in made]
        single = pd.Series(alone, index=curves.index, dtype=bool)
        curves[term] = curves[term].where(~(single & curves[term].isna()), curves["loss"])
    mean = curves.groupby(keys, as_index=False)[values].mean()
    for term in ("loss_ar", "loss_mask"):
        smooth = mean.groupby(["scale", "variant"])[term].transform(
            lambda s: s.rolling(SMOOTH, min_periods=1, center=True).mean()
        )
        mean[term] = smooth.where(mean[term].notna())
    return mean[["scale", "variant", *values]]


def figure(study: Study, results: Path) -> Figure:
    """One row a scale; terms across."""
    curves = data(study, results)
    scales = list(study.scales)
    made = Figure(figsize=(style.WIDE, 2.1 * len(scales) + 0.9), layout="constrained")
    axes = made.subplots(len(scales), 2, squeeze=False)
    handles = {}
    for i, scale in enumerate(scales):
        for j, (term, title) in enumerate(TERMS.items()):
            ax = axes[i][j]
            ax.set_title(f"{scale} · {title}", loc="left")
            here = curves[curves["scale"] == scale].dropna(subset=[term])
            if here.empty:
                style.nothing(ax)
                continue
            for name in labels.ordered(study, scale):
                line = here[here["variant"] == name].sort_values("examples")
                if line.empty:
                    continue
                colour, dashes = _look(study, name)
                (drawn,) = ax.plot(
                    line["examples"], line[term], color=colour, linestyle=dashes, linewidth=1.2
                )
                handles[name] = drawn
            # the first steps from a fresh start would flatten everything after them
            late = here[here["examples"] > here["examples"].max() * 0.05][term]
            low, high = float(late.min()), float(late.quantile(0.995))
            ax.set_ylim(max(0.0, low - 0.1 * (high - low)), high + 0.15 * (high - low) + 1e-6)
            ax.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
            if i == len(scales) - 1:
                ax.set_xlabel("examples seen")
            if j == 0:
                ax.set_ylabel("loss (nats a token)")
    if handles:
        made.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return made


def _look(study: Study, name: str) -> tuple[str, style.Dashes]:
    variant = study.variants[name]
    if variant.objective == "mars":
        return style.look(study, name)[0], DASHES[bool(variant.ar_weight), variant.alignment]
    if variant.objective == "block_diffusion":
        return style.PURPLE, (0, (7, 1.5))
    return (style.INK, "-") if len(variant.stages) < 2 else (style.GREY, (0, (4, 2)))


def caption(study: Study) -> str:
    """The caption, in plain text."""
    return (
        "Training loss against examples seen, smoothed over a few logged steps: the next-token "
        "term of the clean stream, and the masked-stream term (block diffusion's weighted by "
        "1/t). Variants of stage 2 start from the AR SFT checkpoint. The first twentieth may "
        "leave the panel."
    )
