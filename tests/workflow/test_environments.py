"""pyproject.toml, the conda environments and what is installed name the same versions."""

import re
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


def test_container_installs_what_pyproject_says():
    """Its Python is ours, and no package has a version of its own there."""
    text = (ROOT / "envs/Containerfile").read_text()
    python = PROJECT["requires-python"].removeprefix(">=")
    assert re.search(r"^FROM python:(\S+)-slim$", text, re.M)[1] == python
    extras = re.search(r'pip install .*"\.\[(.*)\]"', text)[1].split(",")
    assert set(extras) == set(PROJECT["optional-dependencies"]) - {"test"}
    copied = re.findall(r"^COPY (.*) \S+$", text, re.M)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    assert not re.search(r"[a-z0-9]==", text)


def test_extras_are_pinned_and_installed():
    for extra, requirements in PROJECT["optional-dependencies"].items():
        for requirement in requirements:
            if not requirement.startswith(PROJECT["name"]):
                name, _, pinned = requirement.partition("==")
                assert version(name) == pinned, extra
