"""How large a model is: from its weights' header where they are here, else from its name."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from mars.config import Study
from mars.planning.rates import PlanError

_NAMED = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([MB])(?![A-Za-z0-9])", re.IGNORECASE)
_UNITS = {"M": 1e6, "B": 1e9}
EMBEDDED = Path(__file__).parents[1] / "embedded" / "checkpoints"


def parameters(study: Study, scale: str) -> tuple[float, str]:
    """Parameters of a scale's models, and where the number comes from.

    Raises:
        PlanError: the weights are not here, and neither base nor paper names a size.
    """
    base = study.base(scale)
    folder = EMBEDDED / base.removeprefix("embedded:") if base.startswith("embedded:") else base
    if files := sorted(Path(folder).glob("*.safetensors")):
        return float(sum(map(_counted, files))), "counted"
    for told in (base, study.scales[scale].base, scale, study.scales[scale].paper or ""):
        if found := _NAMED.findall(told):
            number, unit = found[-1]
            return float(number) * _UNITS[unit.upper()], f"from the name {told!r}"
    raise PlanError(
        f"scales.{scale}.base: {base!r} is not here and names no size, such as 135M: fetch it "
        f"(`mars fetch`), or set scales.{scale}.paper"
    )


def _counted(path: Path) -> int:
    """Numbers in a safetensors file, from its header alone."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except (OSError, ValueError, OverflowError, MemoryError):
        raise PlanError(f"{path}: cannot be read: fetch it again") from None
    return sum(math.prod(made["shape"]) for key, made in header.items() if key != "__metadata__")
