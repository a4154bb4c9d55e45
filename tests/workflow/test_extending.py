"""docs/extending.md followed to the letter, on copies."""

import re
import subprocess
import sys

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import yaml

import synthetic
from helpers import ROOT, copy_project, snakemake
from resnet_mechanisms import claims
from test_data_sources import write_idx

PAGE = (ROOT / "docs/extending.md").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)[1]


def blocks(title, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", section(title), re.M | re.S)


def insert(path, after, text):
    """Put a text behind the line that begins a table."""
    content = path.read_text()
    assert content.count(after) == 1, (path, after)
    path.write_text(content.replace(after, after + text))


def test_a_figure_in_less_than_thirty_lines(tmp_path):
    module, entry = blocks("A figure", "python")
    (caption,), (config,) = blocks("A figure", "rst"), blocks("A figure", "yaml")
    written = [line for text in (module, entry, caption, config) for line in text.splitlines()]
    assert len([line for line in written if line.strip()]) < 30
    project = copy_project(tmp_path / "a project")
    library = project / "workflow/resnet_mechanisms"
    (library / "figures/ra_alignment_accuracy.py").write_text(module)
    insert(library / "config.py", "\nFIGURES = {\n", entry)
    (project / "workflow/report/ra_alignment_accuracy.rst").write_text(caption)
    network = {"dataset": "digits", "classes": 3, "type": "fc", "depth": 3, "width": 8, "seeds": 0}
    study = {
        "standalone": True,
        "datasets": {"digits": {"source": "digits", "train": 200}},
        "recipes": {"short": {"learning_rate": 0.1, "batch_size": 50, "steps": 8}},
        "grids": {
            f"{skip}_depth": network | {"skip": skip, "recipe": "short"}
            for skip in ("resnet", "plain")
        },
        "measure": {"inputs": {"fc": 2}},
    } | yaml.safe_load(config)
    (project / "mine.yaml").write_text(yaml.safe_dump(study))
    target = "results/figures/ra_alignment_accuracy.png"
    snakemake(project, "--cores", "2", target, "--configfile", "mine.yaml")
    picture = matplotlib.image.imread(project / target)
    assert picture.shape[1] >= 600 and picture[..., :3].std() > 0.01
    # The report of one target: its picture, its caption with the grid.
    given = ("--configfile", "mine.yaml", "--report", "report.html")
    snakemake(project, target, *given)
    report = (project / "report.html").read_text()
    assert "Alignment against test accuracy, training inputs" in report
    assert "fc, plain and resnet; 3 blocks" in report
    # An edit redraws it, and makes nothing else anew.
    with open(library / "figures/ra_alignment_accuracy.py", "a") as file:
        file.write("# edited\n")
    process = snakemake(project, target, "-n", "--configfile", "mine.yaml")
    counts = re.findall(r"^(\w+) +(\d+)$", process.stdout + process.stderr, re.M)
    assert dict(counts) == {"ra_alignment_accuracy": "1", "total": "1"}


def test_a_claim(tmp_path):
    (text,) = blocks("A claim", "yaml")
    path = tmp_path / "claims.yaml"
    path.write_text((ROOT / "workflow/claims.yaml").read_text() + "\n" + text)
    entry = claims.read_claims(path)[-1]
    assert entry["claim"] == yaml.safe_load(text)[0]["claim"]
    aligned, plain = synthetic.score_rows(), synthetic.score_rows(synthetic.PLAIN, depth=4)
    verdicts = {}
    for name, rows in (("aligned", [aligned]), ("both", [aligned, plain]), ("plain", [plain])):
        tables = {"residual_alignment": pd.concat(rows)}
        verdicts[name] = claims.evaluate([entry], tables).verdict[0]
    assert verdicts == {
        "aligned": "reproduced", "both": "not reproduced", "plain": "not reproduced"
    }  # fmt: skip


def in_copy(project, code):
    """Run code with the copy's library."""
    environment = {"PYTHONPATH": str(project / "workflow"), "PATH": "", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_a_data_set(tmp_path):
    project = copy_project(tmp_path / "a project")
    (entry,) = blocks("A data set", "python")
    library = project / "workflow/resnet_mechanisms"
    insert(library / "data_sources.py", "\nSOURCES = {\n", entry)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (20, 28, 28), dtype=np.uint8), np.arange(20) % 10
    folder = project / "data/KMNIST/raw"
    folder.mkdir(parents=True)
    for split, times in (("train", 3000), ("t10k", 500)):  # as many as there are
        write_idx(folder, np.tile(x, (times, 1, 1)), np.tile(y, times), split)
    (own,) = blocks("A data set", "yaml")
    study = yaml.safe_load(own) | {"standalone": True}
    study["datasets"]["kana"] = {"source": "kmnist", "class_list": ["su", "ki"]}
    np.savez(
        project / "data/mine.npz", x_train=x[..., None], y_train=np.arange(20) % 2,
        x_test=x[..., None], y_test=np.arange(20) % 2,
    )  # fmt: skip
    network = {"type": "fc", "skip": "resnet", "depth": 3, "width": 4, "recipe": "none"}
    study["recipes"] = {"none": {"learning_rate": 0.1, "steps": 0}}
    study["grids"] = {
        name: network | {"dataset": name, "classes": 2, "seeds": 0} for name in study["datasets"]
    }
    (project / "mine.yaml").write_text(yaml.safe_dump(study))
    snakemake(project, "--cores", "2", "data", "--configfile", "mine.yaml")
    with np.load(project / "results/data/kana-c2.npz") as images:
        assert images["classes"].tolist() == ["su", "ki"]
        np.testing.assert_array_equal(images["x_train"][:4, ..., 0], x[np.isin(y, [1, 2])])
        assert images["y_train"][:4].tolist() == [1, 0, 1, 0] and len(images["x_test"]) == 2000
    with np.load(project / "results/data/mine-c2.npz") as images:
        assert images["x_train"].shape == (20, 28, 28, 1)


def test_a_network_type(tmp_path):
    """One line: it can be named, trains, and its Jacobian is the generic operator's."""
    project = copy_project(tmp_path / "a project")
    (entry,) = blocks("A network type", "python")
    path = project / "workflow/resnet_mechanisms/network_types.py"
    insert(path, "\nTYPES = (\n", entry)
    said = in_copy(project, """
import torch
from resnet_mechanisms.config import resolve
from resnet_mechanisms.jacobians import linearise
from resnet_mechanisms.networks import Network
from resnet_mechanisms.residual_blocks import ResidualModel

network = dict(type="cifar_pre", skip="resnet", depth=6, width=4)
resolve({"datasets": {"digits": {"source": "digits"}},
         "recipes": {"r": {"learning_rate": 0.1, "steps": 1}},
         "grids": {"g": network | dict(dataset="digits", classes=10, recipe="r", seeds=0)}})
torch.manual_seed(0)
model = Network(network, (3, 16, 16), 5).double()
model(torch.randn(32, 3, 16, 16).double())  # batch-norm statistics
model.eval()
x = torch.randn(2, 3, 16, 16).double()
states, jacobians, _ = linearise(model, x)
_, generic, _ = ResidualModel(model, x).linearise(x)
for h, after, one, other in zip(states, states[1:], jacobians, generic):
    v = torch.randn_like(h)
    image = other.matvec(v.flatten(1)[:, None])[:, 0].view_as(after)
    torch.testing.assert_close(one.matvec(one.vectors(v)[:, None])[:, 0], one.vectors(image))
print(len(generic))
""")  # fmt: skip
    assert said.strip() == "6"


@pytest.mark.parametrize("path", re.findall(r"`((?:workflow|tests|docs)/[\w./]+)`", PAGE))
def test_files_named_there(path):
    assert (ROOT / path).exists() or "ra_alignment_accuracy" in path
