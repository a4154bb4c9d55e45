"""What a mistake looks like on the command line: one line, no traceback, before anything runs."""

import pytest

from helpers import snakemake

USUAL = "digits/c10/fc-resnet/d8-w128/usual"
MISTAKES = {
    "a typo": (
        "grids: {width: {depht: 4}}",
        "grids.width.depht: unknown key; did you mean depth?",
    ),
    "too many classes": (
        "grids: {width: {classes: 11}}",
        "grids.width.classes: expected an integer from 2 to 10, found 11 (digits has 10)",
    ),
    "noise without noisy labels": (
        "recipes: {usual: {label_noise: 0.2}}",
        "recipes.usual.label_noise: expected none unless labels is noisy",
    ),
    "stochastic depth without skips": (
        "grids: {plain_usual: {recipe: stochastic_depth}}",
        "grids.plain_usual.skip: expected resnet, as stochastic depth (recipe stochastic_depth)",
    ),
    "no data file": (
        "datasets: {mine: {source: npz, path: mine.npz}}\ngrids: {width: {dataset: mine}}",
        "datasets.mine.path: no file data/mine.npz (data_root: data); expected an .npz with ",
    ),
    "no public data": (
        "datasets: {mine: {source: cifar10}}\ngrids: {width: {dataset: mine}}",
        "datasets.mine: no CIFAR-10 in data/cifar-10-batches-py: lacks data_batch_1, data_batch_2",
    ),
    "no such class": (
        "datasets: {mine: {source: cifar10, class_list: [car, brid]}}",
        "datasets.mine.class_list: no class 'brid'; did you mean bird?",
    ),
    "a key twice": ("grids:\n  a: {}\n  a: {}", "line 2: not valid YAML: a twice"),
    "broken YAML": ("grids: {a: [1", "line 1: not valid YAML"),
}


def the_line(process):
    """The one line that is said about the mistake."""
    said = process.stdout + process.stderr
    assert process.returncode == 1
    assert "Traceback" not in said
    assert "File " not in said
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert said.rstrip().endswith(lines[0])
    return lines[0]


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if name != "broken YAML"])
def test_mistake_in_own_file(untouched, tmp_path, mistake):
    text, message = MISTAKES[mistake]
    (tmp_path / "mine.yaml").write_text(text)
    process = snakemake(
        untouched, "--cores", "1", "--configfile", str(tmp_path / "mine.yaml"), check=False
    )
    assert message in the_line(process)


def test_mistake_in_config_yaml(project):
    text, message = MISTAKES["broken YAML"]
    (project / "config.yaml").write_text(text)
    assert message in the_line(snakemake(project, "--dry-run", check=False))


def test_mistake_on_the_command_line(untouched):
    process = snakemake(untouched, "--dry-run", "--config", "devcie=cpu", check=False)
    assert "devcie: unknown key; did you mean device?" in the_line(process)


@pytest.mark.parametrize(
    ("target", "nearest"),
    [
        ("figure", "figures"),
        ("results/figures/ra4_inverse_singlar_values.pdf", "ra4_inverse_singular_values.pdf"),
        (
            "results/networks/digits/c10/fc-resnet/d9-w128/usual/checkpoints.pt",
            f"results/networks/{USUAL}/checkpoints.pt",
        ),
        (f"results/figures/{USUAL}/ra1_trajectory.png", f"{USUAL}/ra1_trajectories.png"),
    ],
)
def test_mistyped_target(untouched, target, nearest):
    line = the_line(snakemake(untouched, "--cores", "1", target, check=False))
    assert line.startswith(f"error: nothing makes {target}; nearest targets: ")
    assert nearest in line


def test_broken_source(project):
    source = project / "workflow/resnet_mechanisms/svd.py"
    source.write_text(source.read_text() + "\nx = (\n")
    line = the_line(snakemake(project, "--dry-run", check=False))
    assert "workflow/resnet_mechanisms/svd.py, line " in line
