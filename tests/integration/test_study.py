"""Small studies really run, from images to figures: complete, repeatable, restartable."""

import json
import os
import signal
import subprocess
import sys
import time

import matplotlib.image
import numpy as np
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
STATUSES = {"ok", "diverged", "dead", "chance_accuracy", "too_few_points", "not_resolved"}
STATUSES |= {"not_converged", "collapsed", "constant", "no_path", "too_many"}


def run(project, config, *targets):
    return snakemake(
        project, "--cores", "2", "--configfile", config, *(["--", *targets] if targets else [])
    )


def tables(project):
    return {name: (project / f"results/tables/{name}.csv").read_bytes() for name in TABLES}


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
    project = copy_project(tmp_path / "another project")
    run(project, SMOKE, *(f"results/tables/{name}.csv" for name in TABLES))
    assert tables(project) == tables(smoke)


# A study that trains for some seconds, to be stopped in the middle, and one recipe that diverges.
RECIPE = {"learning_rate": 0.1, "weight_decay": 0.01, "batch_size": 50}
NETWORK = {"dataset": "digits", "classes": 3, "type": "fc", "width": 16, "seeds": [0, 1]}
LONG = {
    "standalone": True,
    "datasets": {"digits": {"source": "digits", "train": 300}},
    "recipes": {
        "slow": RECIPE | {"steps": 6000, "evaluate_every": 50},
        "hot": RECIPE | {"learning_rate": 100, "steps": 60, "evaluate_every": 1},
    },
    "grids": {
        "slow": NETWORK | {"skip": ["resnet", "plain"], "depth": 3, "recipe": "slow"},
        "hot": NETWORK | {"skip": "resnet", "depth": 8, "recipe": "hot"},
    },
    "measure": {"inputs": {"fc": 4}},
    "figures": {"ra_depth": {"grids": ["slow", "hot"]}},
}
LONG_TABLES = ["results/tables/residual_alignment.csv", "results/tables/degradation.csv"]


def long_project(folder):
    project = copy_project(folder)
    (project / "long.yaml").write_text(yaml.safe_dump(LONG))
    return project


def launch(project, *targets):
    """What `make` starts, in a process group of its own."""
    words = [sys.executable, "workflow/scripts/run_study.py", "--configfile", "long.yaml"]
    return subprocess.Popen(
        [*words, "--", *targets], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.02)


def read(project):
    return [(project / path).read_bytes() for path in LONG_TABLES]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    project = long_project(tmp_path_factory.mktemp("undisturbed") / "a project")
    process = launch(project, *LONG_TABLES, "results/figures/ra_depth.pdf")
    assert process.wait() == 0, process.communicate()[0]
    return project


def test_killed_in_the_middle_of_training(undisturbed, tmp_path):
    project = long_project(tmp_path / "a project")
    process = launch(project, *LONG_TABLES)
    wait_for(lambda: any(project.glob("results/state/**/seed*.running.pt")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert any((project / ".snakemake/locks").iterdir())
    told = snakemake(
        project, "--cores", "1", "--configfile", "long.yaml", "--", *LONG_TABLES, check=False
    )
    assert told.returncode and "--unlock" in told.stdout + told.stderr
    again = launch(project, *LONG_TABLES)
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert "going on from what it has finished" in output
    logs = "".join(path.read_text() for path in project.glob("results/logs/networks/**/*.log"))
    assert "continued after epoch" in logs
    assert read(project) == read(undisturbed)


def test_a_second_run_is_refused_while_one_is_going_on(undisturbed, tmp_path):
    project = long_project(tmp_path / "a project")
    first = launch(project, *LONG_TABLES)
    wait_for(lambda: any(project.glob("results/state/**/lock")), first)
    second = launch(project, *LONG_TABLES)
    output, _ = second.communicate()
    assert second.returncode == 1
    assert output.splitlines() == [
        f"error: a run of this study is going on (process {first.pid}); wait for it or stop it"
    ]
    output, _ = first.communicate()
    assert first.returncode == 0, output
    assert read(project) == read(undisturbed)


def test_a_diverging_recipe_is_recorded_and_the_rest_goes_on(undisturbed):
    rows, losses = (pd.read_csv(undisturbed / path) for path in LONG_TABLES)
    hot = rows.recipe == "hot"
    assert (rows[hot].status == "diverged").all() and hot.sum() == 4
    assert rows[hot].loc[:, "line_shape_score":].isna().all().all()
    assert not (rows[~hot].status == "diverged").any()
    assert rows[~hot & (rows.skip == "resnet")].line_shape_score.notna().all()
    assert (losses[losses.recipe == "hot"].groupby("seed").status.last() == "diverged").all()
    assert np.isfinite(losses.train_loss.dropna()).all()


def test_one_more_seed_trains_only_that_seed(undisturbed):
    study = yaml.safe_load((undisturbed / "long.yaml").read_text())
    study["grids"]["slow"]["seeds"] = [0, 1, 2]
    (undisturbed / "more.yaml").write_text(yaml.safe_dump(study))
    folder = "results/networks/digits/c3/fc-plain/d3-w16/slow"
    state = {
        p: p.stat().st_mtime_ns for p in undisturbed.glob("results/state/**/fc-plain/**/seed?.pt")
    }
    assert len(state) == 2
    run(undisturbed, "more.yaml", f"{folder}/history.csv")
    assert all(path.stat().st_mtime_ns == before for path, before in state.items())
    log = (undisturbed / "results/logs/networks/digits/c3/fc-plain/d3-w16/slow.log").read_text()
    assert "seed 0: finished before\nseed 1: finished before\nseed 2: epoch" in log
    history = pd.read_csv(undisturbed / folder / "history.csv")
    assert sorted(history.seed.unique()) == [0, 1, 2]
