"""Small studies really run, from images to figures: complete, repeatable, restartable."""

import json
import re
import shutil

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


def test_progress_was_told(smoke):
    """From no job to all, in the log that is told of in the docs."""
    lines = (smoke / "results/logs/progress.log").read_text().splitlines()
    counts = [re.search(r"(\d+) of (\d+) jobs done", line).groups() for line in lines]
    done, of = zip(*((int(a), int(b)) for a, b in counts), strict=True)
    assert done[0] == 0 and list(done) == sorted(done) and done[-1] == of[-1] and len(set(of)) == 1
    assert re.search(r"left$|left \|", lines[0]) and re.search(r" after \S+ (s|min|h)$", lines[-1])
    stats = yaml.safe_load((smoke / SMOKE).read_text())
    assert of[0] > len(stats["figures"]) + len(TABLES)


CATEGORIES = [
    "1. Claims", "2. All three papers", "3. Residual Alignment (Li & Papyan 2023)",
    "4. Shattered gradients (Balduzzi et al. 2017)", "5. Degradation (He et al. 2016)",
]  # fmt: skip


def read_report(page):
    """Every result of a report looked at, by the labels one reads: {figure: its caption}."""
    menu = page.get_by_role("link").all_inner_texts()
    assert [text for text in menu if text[0:1].isdigit()][: len(CATEGORIES)] == CATEGORIES
    found = {}
    for category in CATEGORIES:
        page.get_by_role("link", name=category).click()
        page.locator("tbody td").first.wait_for()
        for label in page.locator("tbody td:first-child").all_inner_texts():
            name = label.partition(":")[0]
            row = page.locator("tbody tr").filter(has=page.get_by_text(label, exact=True))
            row.locator("[iconname=eye]").click()
            if name == "claims as a table":
                table = page.frame_locator("iframe").get_by_role("heading", name="Li & Papyan 2023")
                table.first.wait_for()
            else:
                picture = page.locator("img[src*=png]")
                assert picture.evaluate("(i) => i.decode().then(() => i.naturalWidth)") >= 600, name
            row.locator("[iconname=information-circle]").click()
            page.get_by_text("Job parameters").wait_for()
            found[name] = page.locator("body").inner_text()
            page.get_by_role("link", name=category).click()
        page.locator("nav ol a").first.click()
    page.get_by_role("link", name="Statistics").click()
    page.locator("#runtimes canvas, #runtimes svg").first.wait_for()
    return found


def test_report(smoke, open_page):
    """Opened without a network: claims first, then the papers; every figure by its label, its
    picture and its caption; runtimes."""
    snakemake(smoke, "--configfile", SMOKE, "--report", "results/report.html")
    with open_page(smoke / "results/report.html") as page:
        page.get_by_text("Why do residual networks work?").first.wait_for()
        found = read_report(page)
    assert set(found) == {*FIGURES, "claims as a table"}
    for name, caption in found.items():
        for part in ("What the paper claims.", "What was measured.", "With which grid."):
            assert part in caption, (name, part)
    assert "fc, plain and resnet; 3 and 4 blocks" in found["ra_depth"]


def test_report_as_a_folder(smoke, open_page, tmp_path):
    """The zip, for many figures: the same pages beside the files."""
    snakemake(smoke, "--configfile", SMOKE, "--report", "results/report.zip")
    shutil.unpack_archive(smoke / "results/report.zip", tmp_path)
    (index,) = tmp_path.glob("*/report.html")
    with open_page(index) as page:
        page.get_by_role("link", name=CATEGORIES[-1]).click()
        page.locator("tbody tr").first.locator("[iconname=eye]").click()
        picture = page.locator("img[src*=png]")
        assert picture.evaluate("(i) => i.decode().then(() => i.naturalWidth)") >= 600


def test_explorer_of_a_run(smoke, open_page):
    """Every measured network of the study can be chosen, and is drawn or says why not."""
    with open_page(smoke / "results/explorer.html") as page:
        page.wait_for_selector("body[data-ready]")
        left = page.get_by_role("region", name="Left network")
        options = left.get_by_label("Network", exact=True).locator("option").all_inner_texts()
        assert len(options) == len(list(smoke.glob("results/spectra/**/spectra.nc")))
        for option in options:
            left.get_by_label("Network", exact=True).select_option(label=option)
            page.wait_for_selector("body[aria-busy=false]")
            assert left.get_by_role("heading", level=2).inner_text() == option
            shown = left.locator("[data-plot=inverse] .points path").count()
            assert shown or "No spectra" in left.get_by_role("status").inner_text()


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
