"""A config, or a data file, from someone who means harm: refused in one line, or harmless."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
import yaml

from helpers import planned, snakemake

HOSTILE = [
    "$(touch pwned)", "`touch pwned`", "; touch pwned", "a b", "a'b", 'a"b', "../../outside",
    "/etc/passwd", "-rf", "a\nb", "{input}", "*", "~", "a\\b",
]  # fmt: skip
NETWORK = {"dataset": "mine", "classes": 2, "type": "fc", "skip": "resnet", "depth": 1, "width": 4}
STUDY = {
    "standalone": True,
    "data_root": ".",
    "datasets": {"mine": {"source": "npz", "path": "mine.npz"}},
    "recipes": {"usual": {"learning_rate": 0.1, "steps": 2, "batch_size": 4}},
    "grids": {"grid": NETWORK | {"recipe": "usual", "seeds": 0}},
}


class Payload:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch pwned",)


def arrays():
    rng = np.random.default_rng(0)
    found = {"classes": np.array(["a $(touch pwned)", "b`touch pwned`"])}
    for split in ("train", "test"):
        found[f"x_{split}"] = rng.integers(0, 255, (20, 4, 4, 1), dtype=np.uint8)
        found[f"y_{split}"] = np.arange(20) % 2
    return found


def write_study(project, study, name="mine.npz"):
    np.savez(project / name, **arrays())
    (project / "study.yaml").write_text(yaml.safe_dump(study))


def run(project, *targets):
    process = snakemake(
        project, "--cores", "1", "--configfile", "study.yaml", "--", *targets, check=False
    )
    return process, process.stdout + process.stderr


def renamed(section, name):
    study = yaml.safe_load(yaml.safe_dump(STUDY))
    (old,) = study[section]
    study[section] = {name: study[section][old]}
    if section != "grids":
        study["grids"]["grid"][section.removesuffix("s")] = name
    return study


@pytest.mark.parametrize("section", ["datasets", "recipes", "grids"])
@pytest.mark.parametrize("name", HOSTILE)
def test_names_become_paths_and_are_refused(section, name):
    from resnet_mechanisms.config import resolve
    from resnet_mechanisms.errors import UserError

    with pytest.raises(UserError, match="a name of letters, digits and _") as error:
        resolve(renamed(section, name), check_files=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["$(touch pwned)", "a'b; `touch pwned`", "../../outside"])
def test_a_path_with_anything_in_it_is_only_a_path(project, name):
    """The file with this very name is read, or missed in one line; no shell sees it."""
    file = f"{name}.npz"
    study = STUDY | {"data_root": "data $(touch pwned)"}
    study["datasets"] = {"mine": {"source": "npz", "path": file}}
    (project / study["data_root"]).mkdir()
    if "/" in name:
        write_study(project, study)
        process, said = run(project, "data")
        assert process.returncode and "error: config: datasets.mine.path: no file" in said
    else:
        write_study(project, study, f"{study['data_root']}/{file}")
        process, said = run(project, "data")
        assert process.returncode == 0, said
        assert (project / "results/data/mine-c2.npz").exists()
    assert not list(project.glob("**/pwned"))


def test_class_names_are_only_names(project):
    study = yaml.safe_load(yaml.safe_dump(STUDY))
    study["datasets"]["mine"]["class_list"] = ["b`touch pwned`", "a $(touch pwned)"]
    write_study(project, study)
    process, said = run(project, "networks")
    assert process.returncode == 0, said
    assert not list(project.glob("**/pwned"))


def test_values_of_config_on_the_command_line(untouched):
    """`device` is passed on without quotes: only known values are."""
    process = snakemake(
        untouched, "-n", "--cores", "1", "--config", "device=cpu; touch pwned", check=False
    )
    said = process.stdout + process.stderr
    assert process.returncode and "device: expected one of auto, cpu, cuda" in said
    assert not list(untouched.glob("**/pwned"))


def test_targets_outside_the_study(untouched):
    for target in ("../outside.csv", "results/tables/../../Snakefile.csv", "$(touch pwned)"):
        process = snakemake(untouched, "-n", "--cores", "1", "--", target, check=False)
        assert process.returncode, target
        assert "nothing makes" in process.stdout + process.stderr
    assert not list(untouched.glob("**/pwned"))


def test_an_npz_with_a_pickle_is_not_unpickled(project):
    write_study(project, STUDY)
    with zipfile.ZipFile(project / "mine.npz", "a") as archive:
        array = io.BytesIO()
        np.save(array, np.array([Payload()], dtype=object), allow_pickle=True)
        archive.writestr("extra.npy", array.getvalue())
    process, said = run(project, "data")
    assert process.returncode and "cannot be read as .npz without pickles" in said
    assert not list(project.glob("**/pwned"))


def test_checkpoints_that_would_run_code_are_not_loaded(project):
    write_study(project, STUDY)
    process, said = run(project, "networks")
    assert process.returncode == 0, said
    path = next(project.glob("results/networks/**/checkpoints.pt"))
    torch.save({"seeds": Payload()}, path)
    path.with_name("checkpoints.pt.provenance.json").unlink()  # which would tell
    process, said = run(project, "spectra")
    assert process.returncode and "checkpoints.pt: damaged" in said
    assert not list(project.glob("**/pwned"))


def test_states_that_would_run_code_are_not_loaded(tmp_path, monkeypatch, capsys):
    from resnet_mechanisms import files, training

    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    torch.save({"network": Payload()}, buffer)
    for content in (buffer.getvalue(), pickle.dumps(Payload())):
        (tmp_path / "seed0.pt").write_bytes(files.seal(content))
        assert training.load_state(tmp_path / "seed0.pt") is None
    assert "damaged" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["seed0.pt"]


def test_a_project_in_a_folder_with_a_hostile_name(project, tmp_path):
    folder = tmp_path / 'it\'s $(touch pwned) `touch pwned` "a" & b'
    project.rename(folder)
    write_study(folder, STUDY)
    process, said = run(folder, "networks")
    assert process.returncode == 0, said
    assert planned(folder, "networks", configfiles=[folder / "study.yaml"]) == set()
    assert not list(tmp_path.glob("**/pwned"))


def test_braces_in_the_folder_are_refused_in_one_line(project, tmp_path):
    """Snakemake takes them for wildcards."""
    folder = tmp_path / "a {project}"
    project.rename(folder)
    process = snakemake(folder, "-n", check=False)
    assert process.returncode
    assert "error: this folder has { or } in its name" in process.stdout + process.stderr
