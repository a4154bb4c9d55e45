"""docs/config.md says what the code checks, key by key."""

import difflib

import yaml

from helpers import ROOT
from resnet_mechanisms import config, config_reference

PAGE = ROOT / "docs/config.md"


def test_the_page_is_of_this_schema():
    old, new = PAGE.read_text().splitlines(), config_reference.text().splitlines()
    changes = "\n".join(difflib.unified_diff(old, new, "docs/config.md", "the schema", lineterm=""))
    assert not changes, f"run: python workflow/scripts/config_reference.py\n{changes}"


def test_every_key_has_words_and_no_words_without_a_key():
    sections = {
        "TOP": config.TOP,
        "DATASET": {key for keys in config.DATASET.values() for key in keys},
        "RECIPE": config.RECIPE,
        "GRID": config.GRID,
        "EXTERNAL": config.EXTERNAL,
        "MEASURE": config.MEASURE,
        "GRADIENTS": config.GRADIENTS,
        "SHARED": {key for keys in config.GRADIENTS.values() for key in keys},
        "UNCONSTRAINED_JACOBIANS": config.UNCONSTRAINED_JACOBIANS,
        "FIGURES": set(config.FIGURES.values()),
    }
    for name, keys in sections.items():
        assert set(getattr(config_reference, name)) == set(keys), name


def test_a_message_expects_what_the_page_says():
    """The words of the table are those of the error."""
    for key, (check, _) in config.RECIPE.items():
        try:
            check({"no": "such value"}, key)
        except config.UserError as error:
            expected = check.expected.removesuffix(", or a list of such")
            assert f"expected {expected}, found" in str(error), key
        else:
            raise AssertionError(f"{key} takes anything")


def test_keys_of_the_shipped_studies_are_on_the_page():
    page = PAGE.read_text()
    for path in (ROOT / "config.yaml", *(ROOT / "workflow/studies").glob("*.yaml")):
        study = yaml.safe_load(path.read_text())
        for section in ("recipes", "grids", "datasets"):
            for entry in (study.get(section) or {}).values():
                for key in entry or {}:
                    assert f"| `{key}` |" in page, (path.name, section, key)
