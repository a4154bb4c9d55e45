"""Projects to run in."""

import shutil
from pathlib import Path

import pytest

from helpers import copy_project, put_stand_ins, snakemake


def pytest_addoption(parser):
    parser.addoption(
        "--write-faults", action="store_true", help="write what faults cost to docs/clusters.md"
    )


@pytest.fixture(scope="session")
def untouched(tmp_path_factory):
    """A project in which nothing has run; not to be changed."""
    return copy_project(tmp_path_factory.mktemp("untouched") / "a project")


@pytest.fixture
def project(tmp_path):
    """A project in which nothing has run, in a folder with a space."""
    return copy_project(tmp_path / "a project")


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory):
    """A project whose default study has been run, with stand-ins for the commands."""
    project = copy_project(tmp_path_factory.mktemp("finished") / "a project")
    put_stand_ins(project)
    snakemake(project, "--cores", "4", "--quiet", "all")
    return project


@pytest.fixture
def finished(finished_once, tmp_path):
    """A copy of the finished project, to change."""
    return Path(shutil.copytree(finished_once, tmp_path / "a project"))
