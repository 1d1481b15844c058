"""The lock pins what the project imports, for every Python and system it names, and no more."""

from __future__ import annotations

import re
import tomllib

import yaml

from .conftest import ROOT

PINS = [
    line.split(" ")[0]
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
LOCKED = {pin.split("==")[0] for pin in PINS}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!\[ ]", name)[0]).lower()


def test_every_package_is_pinned():
    assert all(re.fullmatch(r"[a-z0-9-]+==[^=]+", pin) for pin in PINS)


def test_every_direct_dependency_is_locked_but_torch():
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    wanted = {normal(name) for name in project["dependencies"]}
    wanted |= {normal(name) for name in project["optional-dependencies"]["dev"]}
    assert wanted - LOCKED == {"torch"}


def test_torch_and_its_libraries_are_left_to_the_user():
    assert not [name for name in LOCKED if re.match(r"torch|triton|nvidia-|cuda-", name)]


def test_the_lock_names_no_index():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text
    assert "--" not in text


def test_the_conda_file_has_the_same_versions():
    file = ROOT / "workflow" / "envs" / "mars.yaml"
    named = yaml.safe_load(file.read_text(encoding="utf-8"))["dependencies"]
    pairs = [entry.split(" =") for entry in named]
    ours = {f"{name}=={version}" for name, version in pairs if name not in ("python", "pytorch")}
    assert ours <= set(PINS)
