"""Captions, the sentence on the grid, and the page of claims."""

import re

import pandas as pd
import pytest
import yaml
from docutils.core import publish_parts

from helpers import ROOT
from resnet_mechanisms import claims_page, grid_text
from resnet_mechanisms.config import FIGURES, resolve

STUDY = resolve(yaml.safe_load((ROOT / "config.yaml").read_text()))
SMOKE = resolve(yaml.safe_load((ROOT / "workflow/studies/smoke.yaml").read_text()))
CAPTIONS = ROOT / "workflow/report"


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_caption(name):
    """Of three parts, in which restructured text finds no mistake."""
    text = (CAPTIONS / f"{name}.rst").read_text()
    parts = re.split(r"\*\*(.+?)\.\*\* ", text)
    assert parts[1::2] == ["What the paper claims", "What was measured", "With which grid"]
    assert all(len(part.split()) >= 8 for part in parts[2:5:2])
    assert parts[6].strip() == "{{ snakemake.params.shows }}"
    html = publish_parts(text, writer_name="html", settings_overrides={"report_level": 5})["body"]
    assert "problematic" not in html and "system-message" not in html


def test_no_caption_without_its_figure():
    assert {path.stem for path in CAPTIONS.glob("*.rst")} == {*FIGURES, "workflow"}


@pytest.mark.parametrize(
    ("study", "name", "sentence"),
    [
        (
            STUDY,
            "ra_depth",
            "digits, 10 classes; fc, plain and resnet; 2, 4, 8, 12, 16 and 24 blocks; width 128; "
            "recipe strong_decay and usual; seeds 10 to 12 (36 networks of 15 configurations).",
        ),
        (
            STUDY,
            "ra1_trajectories",
            "digits, 10 classes; fc, resnet; 16 blocks; width 128; recipe strong_decay; seeds 10 "
            "to 12 (3 networks of 1 configurations).",
        ),
        (
            SMOKE,
            "sg_paths",
            "Random networks: width 16; batch 4; input dimension 16; networks 3; depth 1, 2 and 4; "
            "beta 1; length depth 4; seed 0.",
        ),
        (
            SMOKE,
            "unconstrained_jacobians",
            "A model of free matrices: classes 2 and 4; blocks 4; penalty strength 0.01; starts 2; "
            "seed 0.",
        ),
    ],
)
def test_the_grid_in_a_sentence(study, name, sentence):
    assert grid_text.shows(study, name) == sentence


def test_large_grids_stay_short():
    paper = resolve(yaml.safe_load((ROOT / "workflow/studies/paper.yaml").read_text()), False)
    for name in paper.figures:
        assert len(grid_text.shows(paper, name)) < 700, name


def test_page_of_claims():
    row = dict(
        claim="RA1 <line>", paper="Li & Papyan 2023", statement="They lie & line up",
        statistic="line_shape_score", value=1.0123, low=1.0, high=1.0456, threshold="<= 1.1",
        origin="pilot", verdict="reproduced", status="ok",
    )  # fmt: skip
    absent = row | dict(claim="first", value=None, low=None, high=None, verdict="inconclusive")
    absent |= dict(status="no rows")
    page = claims_page.page(pd.DataFrame([absent, row]))
    assert "2 claims: 1 reproduced, 0 not reproduced, 1 inconclusive" in page
    assert "1.01 [1, 1.05]" in page and "&lt;= 1.1 (pilot)" in page and "RA1 &lt;line&gt;" in page
    assert page.index("RA1") < page.index("first")  # what has rows first
    assert "Li &amp; Papyan 2023</h2>" in page and "undefined" in page
