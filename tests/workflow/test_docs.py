"""README.md and docs/: links lead somewhere, files exist, commands are understood."""

import re
import shlex

import pytest
import yaml

from helpers import ROOT, copy_project, planned
from resnet_mechanisms.config import FIGURES

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(text):
    """The anchors of a page's headings, as Markdown viewers make them."""
    titles = re.findall(r"^#+ (.*)$", without_code(text), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", TEXTS)
def test_links_and_pictures(name):
    """Files and headings of this project; other addresses are not asked for."""
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[name]):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.read_text()), target


@pytest.mark.parametrize("name", TEXTS)
def test_files_named_in_the_text_exist(name):
    for path in re.findall(r"`((?:workflow|tests|docs|profiles|envs)/[\w./-]+)`", TEXTS[name]):
        assert (ROOT / path).exists() or "NAME" in path or "ra_alignment_accuracy" in path, path


def test_every_page_is_linked_from_the_readme():
    for name in TEXTS:
        assert name == "README.md" or f"]({name}" in TEXTS["README.md"], name


def test_every_figure_is_listed_in_the_readme():
    for name in FIGURES:
        assert re.search(rf"\b{name}\b", TEXTS["README.md"]), name


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for name, text in TEXTS.items():
        code = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```$", text, re.M | re.S))
        words = re.findall(r"`make (\w+)[ `]", text) + re.findall(r"^make (\w+)", code, re.M)
        for target in words:
            assert re.search(rf"^{target}:", makefile, re.M), (name, target)


def commands():
    """`snakemake ...` in code blocks: (page, its targets, files given with --configfile)."""
    for name, text in TEXTS.items():
        for block in re.findall(r"^```\n(.*?)^```$", text, re.M | re.S):
            for line in block.splitlines():
                if line.startswith("snakemake "):
                    words = shlex.split(line, comments=True)[1:]
                    yield name, words


TAKE_A_VALUE = {"--cores": 1, "--report": 1, "--configfile": 1, "--workflow-profile": 1}
TAKE_A_VALUE |= {"--directory": 1, "--jobs": 1}
OWN = {  # files of the reader's own, as the pages describe them
    "mine.yaml": None,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = copy_project(tmp_path_factory.mktemp("docs") / "a project")
    page = TEXTS["docs/your-network.md"]
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    study = yaml.safe_load(text)
    study["datasets"]["cifar"]["download"] = True  # nothing is fetched in a dry run
    (project / "mine.yaml").write_text(yaml.safe_dump(study))
    for entry in study["external"].values():
        for path in (entry.get("weights"), entry["model"].partition(":")[0]):
            if path and path.endswith((".pt", ".py", ".safetensors")):
                (project / path).parent.mkdir(exist_ok=True)
                (project / path).touch()
    return project


def test_commands_are_understood(project):
    """Every option is one of Snakemake's, every target one of ours: a dry run of each."""
    from snakemake.cli import get_argument_parser

    known = set(get_argument_parser()._option_string_actions)
    seen = 0
    for name, words in commands():
        targets, configfiles, position = [], [], 0
        while position < len(words):
            word = words[position]
            position += 1
            if word.startswith("-"):
                assert word in known, (name, words)
                if word in TAKE_A_VALUE:
                    value = words[position]
                    position += 1
                    if word == "--configfile":
                        configfiles.append(project / value)
                    if word == "--workflow-profile":
                        assert (ROOT / f"profiles/{value}/profile.yaml").exists(), value
            elif word != "...":
                targets.append(word)
        if any("NAME" in str(word) for word in (*targets, *configfiles)) or "plan" in targets:
            continue
        for path in configfiles:
            assert path.exists(), (name, path)
        planned(project, *targets, configfiles=configfiles)
        seen += 1
    assert seen >= 8


def test_python_of_the_readme_runs():
    """The lines as they stand give what they name."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXTS["README.md"], re.M | re.S)
    names = {}
    exec(code, names)
    found = names["found"]
    assert found.alignment.shape == (2, 8, 8) and len(found.triplets) == 8
    assert {"line_shape_score", "alignment", "inverse_slope"} <= set(found.scores)
