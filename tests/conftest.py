"""Projects to run in, and a browser to read pages with."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers import copy_project, put_stand_ins, snakemake

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


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


@pytest.fixture(scope="module")
def chromium():
    """The browser; tests skip where none is installed. Not for longer than a module: while it lives
    its event loop runs in this thread, and Snakemake cannot plan in it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as started:
        # Without its sandbox, which containers and root do not allow; it opens our own files only.
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def open_page(chromium):
    """`with open_page(path, width, height) as page`: a file opened with the network cut off; at the
    end nothing may have gone wrong: no error, no message of one, no request but to files."""

    @contextmanager
    def opened(path, width=1280, height=900, fragment=""):
        context = chromium.new_context(
            viewport={"width": width, "height": height}, offline=True, reduced_motion="reduce"
        )
        context.set_default_timeout(10_000)
        page, wrong = context.new_page(), []
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url[:200]}"))

        def requested(request):
            if not request.url.startswith(("file:", "data:", "blob:")):
                wrong.append(f"asked for {request.url[:200]}")

        page.on("request", requested)
        page.goto(path.resolve().as_uri() + fragment)
        yield page
        context.close()
        assert wrong == []

    return opened
