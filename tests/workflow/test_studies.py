"""The studies beside the default one: they resolve, and a run of them can be planned."""

import pytest
import yaml
from snakemake.utils import update_config

from helpers import ROOT, planned
from resnet_mechanisms.config import FIGURES, resolve

DEFAULT = yaml.safe_load((ROOT / "config.yaml").read_text())
STUDIES = sorted(path.stem for path in (ROOT / "workflow/studies").glob("*.yaml"))


def study(name):
    """The study as Snakemake would read it; whether its data are there does not matter."""
    config = yaml.safe_load((ROOT / f"workflow/studies/{name}.yaml").read_text())
    if not config.get("standalone"):
        merged = yaml.safe_load((ROOT / "config.yaml").read_text())
        update_config(merged, config)
        config = merged
    return resolve(config, check_files=False)


@pytest.mark.parametrize("name", STUDIES)
def test_figures_show_networks_of_the_study(name):
    found = study(name)
    assert "claims" in found.figures
    for figure, shown in found.figures.items():
        assert bool(shown) == (FIGURES[figure] is not None), figure
        assert set(shown) <= set(found.networks), figure


def test_the_default_study_is_a_part_of_digits():
    whole = study("digits").networks
    for path, network in resolve(DEFAULT).networks.items():
        assert set(network["seeds"]) <= set(whole[path]["seeds"]), path


def test_digits_and_gradients_show_every_figure_on_seeds_of_their_own():
    found = study("digits")
    assert set(found.figures) | set(study("gradients").figures) == set(FIGURES)
    for path, network in found.networks.items():
        assert min(network["seeds"]) >= 10, path  # the pilot used 0 to 9
        assert len(network["seeds"]) >= 2, path  # fewer make no verdict


@pytest.mark.parametrize("name", STUDIES)
def test_a_run_can_be_planned(untouched, name):
    """Public data need not be there: they would be downloaded."""
    found = study(name)
    files = planned(untouched, configfiles=[untouched / f"workflow/studies/{name}.yaml"])
    for path in filter(found.measured, found.networks):
        assert f"results/spectra/{path}/spectra.nc" in files
    for figure in found.figures:
        assert f"results/figures/{figure}.pdf" in files
