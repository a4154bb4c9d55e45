"""Which jobs a target needs."""

import pytest
import yaml

from helpers import ROOT, planned, put_stand_ins, snakemake
from resnet_mechanisms.config import resolve

STUDY = resolve(yaml.safe_load((ROOT / "config.yaml").read_text()))
BEST = "digits/c10/fc-resnet/d16-w128/strong_decay"
FIGURE_FILES = {
    f"results/figures/{name}.{kind}" for name in STUDY.figures for kind in ("pdf", "png")
}
TABLE_FILES = {
    f"results/tables/{name}.csv"
    for name in (
        "residual_alignment",
        "spectra_per_block",
        "degradation",
        "gradient_covariance",
        "coactivation",
        "activation_patterns",
        "path_counts",
        "path_lengths",
        "linear_regions",
        "unconstrained_jacobians",
        "gradient_covariance_networks",
        "layer_responses",
        "gradient_similarity",
    )
}
CLAIMS_FILES = {"results/tables/claims.csv", "results/tables/claims.html"}
TABLE_FILES |= CLAIMS_FILES
DATA_FILES = {f"results/data/digits-c{classes}.npz" for classes in (3, 5, 10)}
TOY_FILES = {f"results/gradients/{name}" for name in ("toy_gradients.npz", "autocorrelation.csv")}
GRADIENT_FILES = TOY_FILES | {
    f"results/gradients/{name}"
    for name in (
        "gradient_covariance.csv",
        "coactivation.csv",
        "activation_patterns.csv",
        "activation_patterns.npz",
        "path_counts.csv",
        "path_lengths.csv",
        "linear_regions.csv",
    )
}
THEORY_FILES = {
    f"results/theory/{name}.csv"
    for name in ("unconstrained_jacobians", "unconstrained_jacobians_per_block")
}


def trained(paths=STUDY.networks):
    return {
        f"results/networks/{path}/{name}"
        for path in paths
        for name in ("checkpoints.pt", "history.csv")
    }


def followed():
    """Gradients of the networks that figures of them show."""
    figures = ("he7_layer_responses", "he_gradient_norms", "mechanisms")
    paths = dict.fromkeys(path for name in figures for path in STUDY.figures[name])
    names = ("covariance.csv", "layers.csv", "similarity.csv")
    files = {f"results/gradients/{path}/{name}" for path in paths for name in names}
    return paths, files


MEASURED = [path for path in STUDY.networks if STUDY.measured(path)]


def measured(paths=MEASURED):
    names = ("spectra.nc", "residual_alignment.csv", "spectra_per_block.csv")
    return {f"results/spectra/{path}/{name}" for path in paths for name in names}


EXPLORER = {"results/explorer.html", "results/explorer"}
EVERYTHING = EXPLORER | FIGURE_FILES | TABLE_FILES | DATA_FILES | GRADIENT_FILES | THEORY_FILES
EVERYTHING |= trained() | measured() | followed()[1]


def test_default_study(untouched):
    assert planned(untouched) == EVERYTHING


@pytest.mark.parametrize(
    ("stage", "files"),
    [
        ("data", DATA_FILES),
        ("networks", DATA_FILES | trained()),
        ("spectra", DATA_FILES | trained(MEASURED) | measured()),
        ("gradients", GRADIENT_FILES),
        (
            "network_gradients",
            {"results/data/digits-c10.npz"} | trained(followed()[0]) | followed()[1],
        ),
        ("theory", THEORY_FILES),
        ("tables", EVERYTHING - FIGURE_FILES - TOY_FILES - EXPLORER),
        ("figures", EVERYTHING - EXPLORER),
        ("explorer", EVERYTHING - FIGURE_FILES - TOY_FILES - CLAIMS_FILES),
    ],
)
def test_stages(untouched, stage, files):
    assert planned(untouched, stage) == files


@pytest.mark.parametrize("folder", ["results/figures", f"results/figures/{BEST}"])
def test_a_figure_of_one_network_needs_that_network(untouched, folder):
    target = f"{folder}/ra4_inverse_singular_values"
    assert planned(untouched, f"{target}.pdf") == {
        "results/data/digits-c10.npz",
        *trained([BEST]),
        *measured([BEST]),
        f"{target}.pdf",
        f"{target}.png",
    }


def test_a_figure_of_grids_needs_their_networks(untouched):
    assert planned(untouched, "ra_width") == {
        "results/data/digits-c10.npz",
        *trained(STUDY.grids["width"]),
        *measured(STUDY.grids["width"]),
        "results/figures/ra_width.pdf",
        "results/figures/ra_width.png",
    }


def test_degradation_is_drawn_without_spectra(untouched):
    assert not planned(untouched, "results/figures/he1_degradation.png") & measured()


def test_theory_needs_no_network(untouched):
    target = "results/figures/unconstrained_jacobians"
    files = {f"{target}.pdf", f"{target}.png"}
    assert planned(untouched, f"{target}.pdf") == THEORY_FILES | files


def test_gradient_figures_need_no_network(untouched):
    files = planned(untouched, "sg_theorems", "sg1_gradients", "sg2_autocorrelation")
    assert not files & (trained() | DATA_FILES)


def test_standalone_study_replaces_the_default_one(untouched):
    files = planned(untouched, configfiles=[untouched / "workflow/studies/smoke.yaml"])
    assert files >= FIGURE_FILES | TABLE_FILES
    assert not files & trained()
    assert any(file.startswith("results/networks/digits/c3/conv-resnet/d2-w4/") for file in files)


def test_own_data(project):
    (project / "data").mkdir()
    (project / "data" / "my digits.npz").touch()
    mine = project / "mine.yaml"
    mine.write_text(
        "datasets: {mine: {source: npz, path: my digits.npz}}\n"
        "grids: {mine: {dataset: mine, classes: 4, type: conv_down, skip: resnet, depth: 2,"
        " width: 4, recipe: usual, seeds: 0}}\n"
    )
    path = "mine/c4/conv_down-resnet/d2-w4/usual"
    files = planned(project, configfiles=[mine])
    assert files - EVERYTHING == {
        "results/data/mine-c4.npz",
        *trained([path]),
        *measured([path]),
    }


def test_networks_of_the_users_own(project):
    """Their spectra and figures are part of everything, of the tables and of their own stage, and
    change with the files that they come from."""
    (project / "my model.py").write_text("def build():\n    pass\n")
    (project / "weights.pt").write_text("weights")
    mine = project / "mine.yaml"
    mine.write_text(
        'external: {mine: {model: "my model.py:build", weights: weights.pt, dataset: digits,'
        " classes: 10}}\n"
    )
    folder = "results/spectra/external/mine"
    spectra = {f"{folder}/{n}" for n in ("spectra.nc", "residual_alignment.csv")}
    spectra.add(f"{folder}/spectra_per_block.csv")
    figures = {
        f"results/figures/external/mine/{name}.{kind}"
        for name in ("ra1_trajectories", "ra2_alignment", "ra2_alignment_swapped")
        + ("ra3_singular_values", "ra4_inverse_singular_values")
        for kind in ("pdf", "png")
    }
    assert planned(project, configfiles=[mine]) == EVERYTHING | spectra | figures
    data = {"results/data/digits-c10.npz"}
    assert planned(project, "external", configfiles=[mine]) == data | spectra | figures
    assert planned(project, "tables", configfiles=[mine]) >= spectra
    one = "results/figures/external/mine/ra4_inverse_singular_values.pdf"
    files = {one, one.replace(".pdf", ".png")}
    assert planned(project, one, configfiles=[mine]) == data | spectra | files
    put_stand_ins(project)
    run = ("external", "--cores", "4", "--configfile", "mine.yaml")
    snakemake(project, *run)
    assert planned(project, "external", configfiles=[mine]) == set()
    for name in ("my model.py", "weights.pt"):
        (project / name).write_text("changed")
        assert planned(project, "external", configfiles=[mine]) == spectra | figures
        snakemake(project, *run)
    process = snakemake(
        project, "-n", "results/figures/external/mne/ra1_trajectories.pdf",
        "--configfile", "mine.yaml", check=False,
    )  # fmt: skip
    assert "nearest targets: results/figures/external/mine/ra1_traj" in process.stderr


def test_from_another_folder(untouched, tmp_path):
    """Snakefile given by path, results in the working directory; and --directory."""
    target = "results/figures/ra_width.pdf"
    for words in (
        ["--snakefile", str(untouched / "Snakefile")],
        ["--snakefile", str(untouched / "Snakefile"), "--directory", str(tmp_path / "b c")],
    ):
        process = snakemake(tmp_path, "--dry-run", *words, target)
        assert "Drawing results/figures/ra_width.pdf" in process.stdout + process.stderr


def test_lint_finds_nothing(untouched):
    assert snakemake(untouched, "--lint", check=False).returncode == 0
