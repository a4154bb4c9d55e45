"""Small studies really run, from images to figures: complete, repeatable, restartable."""

import json

import matplotlib.image
import pandas as pd
import pytest
import yaml

from helpers import copy_project, snakemake
from resnet_mechanisms.config import FIGURES

SMOKE = "workflow/studies/smoke.yaml"
TABLES = [
    "residual_alignment", "spectra_per_block", "gradient_covariance", "degradation",
    "unconstrained_jacobians", "gradient_covariance_networks", "layer_responses",
    "gradient_similarity", "effective_rank", "coactivation", "activation_patterns", "path_counts",
    "path_lengths", "linear_regions", "claims",
]  # fmt: skip
WITHOUT_NETWORKS = [
    "gradient_covariance", "unconstrained_jacobians", "effective_rank", "coactivation",
    "activation_patterns", "path_counts", "path_lengths", "linear_regions",
]  # fmt: skip
STATUSES = {"ok", "diverged", "dead", "chance_accuracy", "too_few_points", "not_resolved"}
STATUSES |= {"not_converged", "collapsed", "constant", "no_path", "too_many"}


def run(project, config, *targets):
    return snakemake(
        project, "--cores", "2", "--configfile", config, *(["--", *targets] if targets else [])
    )


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    project = copy_project(tmp_path_factory.mktemp("smoke") / "a project")
    run(project, SMOKE)
    return project


def test_every_figure_is_a_picture(smoke):
    figures = yaml.safe_load((smoke / SMOKE).read_text())["figures"]
    assert set(figures) == set(FIGURES)
    for name in figures:
        path = smoke / "results/figures" / name
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF"), name
        picture = matplotlib.image.imread(path.with_suffix(".png"))
        assert picture.shape[1] >= 600 and picture[..., :3].std() > 0.01, name


def test_tables_are_complete_and_finite(smoke):
    for name in TABLES:
        path = smoke / f"results/tables/{name}.csv"
        cells = pd.read_csv(path, dtype=str, keep_default_na=False)
        assert len(cells), name
        assert not cells.isin(["inf", "-inf", "nan", "NaN"]).any().any(), name
        if name not in ("claims", "spectra_per_block"):
            assert set(cells.status) <= STATUSES, name
    rows = pd.read_csv(smoke / "results/tables/residual_alignment.csv")
    # Nine networks and seeds at four epochs, an untrained one; train and test inputs.
    assert len(rows) == (9 * 4 + 1) * 2
    assert rows.max_residual.max() < 1e-4
    claims = pd.read_csv(smoke / "results/tables/claims.csv")
    assert set(claims.verdict) <= {"reproduced", "not reproduced", "inconclusive"}


def test_provenance_lies_beside(smoke):
    made = [*smoke.glob("results/**/checkpoints.pt"), *smoke.glob("results/**/spectra.nc")]
    made += [smoke / f"results/tables/{name}.csv" for name in TABLES]
    for path in made:
        record = json.loads(path.with_name(path.name + ".provenance.json").read_text())
        assert {"revision", "versions", "seconds"} <= record.keys(), path


def test_nothing_is_left_to_do(smoke):
    process = snakemake(smoke, "--dry-run", "--configfile", SMOKE)
    assert "Nothing to be done" in process.stdout + process.stderr


def test_the_same_again_elsewhere_byte_for_byte(smoke, tmp_path):
    """Tables without networks of the study, and a network's rows; test_faults.py has the rest."""
    again = [f"results/tables/{name}.csv" for name in WITHOUT_NETWORKS]
    again.append("results/gradients/digits/c3/fc-plain/d3-w16/strong_decay/layers.csv")
    project = copy_project(tmp_path / "another project")
    run(project, SMOKE, *again)
    for path in again:
        assert (project / path).read_bytes() == (smoke / path).read_bytes(), path
