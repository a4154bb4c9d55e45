"""What an edit of a finished study makes anew: what depends on it, and nothing else."""

import os

import pytest
import yaml

from helpers import planned, put_stand_ins, snakemake
from resnet_mechanisms.data_sources import SOURCES
from test_dag import (
    CLAIMS_FILES,
    DATA_FILES,
    EXPLORER,
    FIGURE_FILES,
    GRADIENT_FILES,
    STUDY,
    THEORY_FILES,
    measured,
    trained,
)


def append(file, text="\n# changed\n"):
    file.write_text(file.read_text() + text)


def figure(name):
    return {f"results/figures/{name}.pdf", f"results/figures/{name}.png"}


def with_recipe(*names):
    return [path for path, network in STUDY.networks.items() if network["recipe"] in names]


def write(project, override):
    file = project / "override.yaml"
    file.write_text(yaml.safe_dump(override))
    return [file]


def test_nothing_to_be_done(finished):
    assert planned(finished) == set()
    process = snakemake(finished, "--dry-run")
    assert "Nothing to be done" in process.stdout + process.stderr


def test_touching_does_nothing(finished):
    for file in [
        finished / "Snakefile",
        finished / "config.yaml",
        *finished.rglob("workflow/**/*"),
    ]:
        os.utime(file)
    assert planned(finished) == set()


def test_a_deleted_file_is_made_again(finished):
    folder = "results/spectra/digits/c10/fc-resnet/d8-w128/strong_decay"
    for file in (finished / folder).iterdir():
        file.unlink()
    assert f"{folder}/spectra.nc" in planned(finished)


def test_a_figure_is_redrawn(finished):
    append(finished / "workflow/resnet_mechanisms/figures/sg_theorems.py")
    assert planned(finished) == figure("sg_theorems")


def test_style_redraws_all_figures(finished):
    append(finished / "workflow/resnet_mechanisms/figures/style.py")
    assert planned(finished) == FIGURE_FILES


def test_claims_are_judged_again(finished):
    append(finished / "workflow/claims.yaml")
    assert planned(finished) == {*CLAIMS_FILES, *figure("claims"), *EXPLORER}


def test_training_code_retrains_networks(finished):
    append(finished / "workflow/resnet_mechanisms/training.py")
    again = planned(finished)
    assert trained() | measured() <= again
    assert not again & (DATA_FILES | GRADIENT_FILES)


def test_measuring_code_retrains_nothing(finished):
    append(finished / "workflow/resnet_mechanisms/alignment.py")
    again = planned(finished)
    assert measured() <= again
    assert not again & (DATA_FILES | GRADIENT_FILES | trained() | figure("he1_degradation"))


def test_gradient_code_and_settings(finished):
    settings = {"gradients": {"toy": {"runs": 3}}}
    assert planned(finished, configfiles=write(finished, settings)) == {
        "results/gradients/toy_gradients.npz",
        "results/gradients/autocorrelation.csv",
        *figure("sg1_gradients"),
        *figure("sg2_autocorrelation"),
    }
    append(finished / "workflow/resnet_mechanisms/gradients.py")
    again = planned(finished)
    assert again >= GRADIENT_FILES
    assert not again & (trained() | measured())


def test_data_are_made_again_where_their_entry_changes(project):
    """But not where only the permission to download does."""
    put_stand_ins(project)
    grid = {"dataset": "mine", "classes": 3, "type": "fc", "skip": "resnet", "depth": 3, "width": 4}
    study = {
        "standalone": True,
        "recipes": {"usual": {"learning_rate": 0.1, "steps": 1}},
        "grids": {"mine": {**grid, "recipe": "usual", "seeds": 0}},
    }

    def with_entry(**entry):
        return write(project, {**study, "datasets": {"mine": {"source": "mnist", **entry}}})

    snakemake(project, "--cores", "1", "data", "--configfile", *with_entry(download=True))
    assert planned(project, "data", configfiles=with_entry(download=True)) == set()
    for folder in ("MNIST/raw", "other"):
        (project / "data" / folder).mkdir(parents=True)
        for name in SOURCES["mnist"].files:
            (project / "data" / folder / f"{name}.gz").touch()
    assert planned(project, "data", configfiles=with_entry()) == set()
    made = {"results/data/mine-c3.npz"}
    for entry in ({"path": "other"}, {"class_list": [7, 8, 9]}, {"size": 32}, {"train": 9}):
        assert planned(project, "data", configfiles=with_entry(**entry)) == made


def test_settings_of_the_unconstrained_jacobians(finished):
    settings = {"unconstrained_jacobians": {"starts": 4}}
    assert planned(finished, configfiles=write(finished, settings)) == {
        *THEORY_FILES,
        "results/tables/unconstrained_jacobians.csv",
        *CLAIMS_FILES,
        *figure("unconstrained_jacobians"),
        *figure("claims"),
        *EXPLORER,
    }


def test_recipe_retrains_what_uses_it(finished):
    override = {"recipes": {"usual": {"weight_decay": 0.001}}}
    again = planned(finished, configfiles=write(finished, override))
    used = with_recipe("usual")
    assert again & trained() == trained(used)
    assert again & measured() == measured(used)
    assert not again & (figure("ra_width") | figure("ra1_trajectories") | DATA_FILES)
    assert figure("ra_depth") | figure("claims") | figure("he1_degradation") <= again


def test_recipe_retrains_what_is_based_on_it(finished):
    override = {"recipes": {"strong_decay": {"momentum": 0.8}}}
    again = planned(finished, configfiles=write(finished, override))
    assert again & trained() == trained()


def test_one_more_seed_is_one_job(finished):
    path = "digits/c10/fc-resnet/d24-w128/strong_decay"
    override = {"grids": {"resnet_deep": {"seeds": [10, 11, 12]}}}
    again = planned(finished, configfiles=write(finished, override))
    assert again & trained() == trained([path])
    assert again & measured() == measured([path])


def test_order_of_seeds_does_not_matter(finished):
    override = {"grids": {"plain_usual": {"seeds": [11, 10]}}}
    assert planned(finished, configfiles=write(finished, override)) == set()


def test_a_new_grid_trains_its_new_networks(finished):
    new = {**yaml.safe_load((finished / "config.yaml").read_text())["grids"]["width"]}
    override = {"grids": {"new": {**new, "width": [64, 96]}}}
    again = planned(finished, configfiles=write(finished, override))
    path = "digits/c10/fc-resnet/d8-w96/strong_decay"
    assert trained([path]) | measured([path]) <= again
    assert not again & (trained() | measured() | figure("ra_width"))


def test_inputs_of_one_type_are_measured_again(finished):
    override = {"measure": {"inputs": {"conv": 4}}}
    again = planned(finished, configfiles=write(finished, override))
    conv = [path for path, network in STUDY.networks.items() if network["type"] == "conv"]
    assert again & measured() == measured(conv)
    assert not again & trained()


@pytest.mark.parametrize("override", [{"device": "cpu"}, {"data_root": "elsewhere"}])
def test_where_it_runs_does_not_matter(finished, override):
    assert planned(finished, configfiles=write(finished, override)) == set()


def test_a_figure_shows_other_grids(finished):
    override = {"figures": {"neural_collapse": {"grids": ["width"]}}}
    again = planned(finished, configfiles=write(finished, override))
    assert again == figure("neural_collapse")


def test_longest_trainings_start_first(finished):
    for path in STUDY.networks:
        (finished / f"results/networks/{path}/checkpoints.pt").unlink()
    process = snakemake(finished, "--cores", "1", "networks")
    said = process.stdout + process.stderr
    started = [line.split()[-1] for line in said.splitlines() if ": Training " in line]
    assert len(started) == len(STUDY.networks)
    costs = [
        STUDY.networks[path]["depth"] * len(STUDY.networks[path]["seeds"])
        for path in started
        if "/fc-" in path and "-w128/" in path and "untrained" not in path
    ]
    assert costs == sorted(costs, reverse=True)
    assert started[-1] == "digits/c10/fc-resnet/d8-w128/untrained"
