"""Residual Alignment on Fashion-MNIST, trained for real where the images are at hand."""

from pathlib import Path

import pandas as pd
import pytest

from resnet_mechanisms import config, data_sources, datasets, spectra, tables, training

ENTRY = {"source": "fashion_mnist", "train": 6000, "test": 1000}


def study_and_images():
    """A study of one network, and 6000 and 1000 images from where Debian's package puts them."""
    study = {
        "datasets": {"fashion": ENTRY},
        "recipes": {"strong_decay": {"learning_rate": 0.1, "weight_decay": 0.02, "epochs": 20}},
        "grids": {
            "resnet": dict(
                dataset="fashion",
                classes=10,
                type="fc",
                skip="resnet",
                depth=8,
                width=128,
                recipe="strong_decay",
                seeds=10,
            ),  # fmt: skip
        },
    }
    study = config.resolve(study, check_files=False)
    return study, datasets.as_images(datasets.prepare(study.datasets["fashion"], 10))


@pytest.mark.skipif(
    not Path(data_sources.SOURCES["fashion_mnist"].also[0]).is_dir(),
    reason="Debian's package dataset-fashion-mnist is not installed",
)
def test_a_trained_resnet_shows_residual_alignment(tmp_path):
    """The pilot's thresholds, set on the digits: line, alignment and slope together."""
    study, data = study_and_images()
    (network,) = study.networks.values()
    recipe = study.recipes["strong_decay"]
    result = {10: training.train(network, recipe, data, 10, tmp_path)}
    history = pd.DataFrame(result[10]["history"], columns=tables.HISTORY)
    rows = spectra.rows(spectra.measure(network, recipe, data, result, history, study.measure))
    for row in rows.itertuples():
        print(row)
        assert row.status == "ok"
        assert row.line_shape_score <= 1.10 and row.alignment >= 0.5
        assert 0.75 <= row.inverse_slope <= 1.25 and row.inverse_r2 >= 0.9
        assert row.sigma_c1_ratio <= 0.03
