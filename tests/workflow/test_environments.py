"""pyproject.toml, the conda environments and what is installed name the same versions."""

import tomllib
from importlib.metadata import version

import pytest
import yaml

from helpers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = dict(requirement.split("==") for requirement in PROJECT["dependencies"])


@pytest.mark.parametrize("name", ["measure", "figures"])
def test_conda_environment_has_the_same_versions(name):
    environment = yaml.safe_load((ROOT / f"envs/{name}.yaml").read_text())
    packages = dict(package.split("=") for package in environment["dependencies"])
    assert packages.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    packages["torch"] = packages.pop("pytorch", PINNED["torch"])
    assert {package: PINNED[package] for package in packages} == packages


def test_installed_versions():
    assert {package: version(package) for package in PINNED} == PINNED
