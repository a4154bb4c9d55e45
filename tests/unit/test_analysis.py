"""Three lines from Python: against the measurement of the pipeline and dense references."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import resnet_mechanisms
from resnet_mechanisms import residual_alignment, spectra
from resnet_mechanisms.errors import UserError
from resnet_mechanisms.networks import Network
from test_residual_blocks import drawn, mlp, vit

SETTINGS = {"tolerance": 1e-6, "memory_mb": 200}


@pytest.mark.parametrize("kind", ["fc", "conv_down"])
def test_scores_are_those_of_the_pipeline(kind):
    network = drawn(Network(dict(type=kind, skip="resnet", depth=6, width=8), (1, 8, 8), 4))
    x = torch.randn(3, 1, 8, 8, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    found = residual_alignment(network, x, triplets=3, tolerance=1e-6)
    expected = spectra.measure_inputs(network, x, 4, SETTINGS)
    for name in ("line_shape_score", "step_cv", "step_cosine", "pc1_share", "alignment",
                 "alignment_swapped", "overlap_uu", "overlap_vv", "overlap_uv", "overlap_chance",
                 "matrix_distance", "off_diagonal", "inverse_slope", "inverse_intercept",
                 "inverse_r2"):  # fmt: skip
        np.testing.assert_allclose(
            found.scores[name], expected[name], rtol=1e-3, atol=1e-5, err_msg=name
        )
    values = expected["singular_values"][..., :3]
    np.testing.assert_allclose(found.singular_values(), values, rtol=1e-5)
    np.testing.assert_allclose(found.step_length, expected["step_length"], rtol=1e-5)
    straight, swapped = found.alignment_matrices()
    cells = straight.diagonal(dim1=3, dim2=4).sum(3) / found.singular_values().sum(2)[:, :, None]
    torch.testing.assert_close(found.alignment, cells, equal_nan=True)
    assert straight.shape == swapped.shape == (3, 6, 6, 3, 3)


def test_any_module():
    """A vision transformer and an MLP; each triplet against the dense matrix."""
    for model, side in ((vit(), 16), (mlp(), 4)):
        model = drawn(model)
        x = torch.randn(
            2, 3, side, side, dtype=torch.double, generator=torch.Generator().manual_seed(3)
        )
        found = residual_alignment(model, x, triplets=4, tolerance=1e-7)
        assert len(found.blocks) == len(found.triplets) == len(found.states) - 1
        for jacobian, triplets in zip(found.jacobians, found.triplets, strict=True):
            s = torch.linalg.svdvals(jacobian.dense)
            scale = s.max().item()
            torch.testing.assert_close(triplets.values, s[:, :4], rtol=0, atol=1e-6 * scale)
            images = jacobian.matvec(triplets.right)
            expected = triplets.values[:, :, None] * triplets.left
            torch.testing.assert_close(images, expected, rtol=0, atol=1e-6 * scale)
        torch.testing.assert_close(
            found.alignment.diagonal(dim1=1, dim2=2), torch.ones_like(found.step_length),
            rtol=0, atol=1e-5,
        )  # fmt: skip
        assert found.scores.index.name == "input" and len(found.scores) == 2


def test_a_model_in_training_mode_is_refused():
    ours = Network(dict(type="fc", skip="resnet", depth=3, width=8), (3, 4, 4), 4)
    for model in (mlp(), ours):
        with pytest.raises(UserError, match="call eval"):
            residual_alignment(model, torch.randn(2, 3, 4, 4))


def test_the_import_is_light_until_it_is_used():
    code = "import sys, resnet_mechanisms; sys.exit('torch' in sys.modules)"
    path = resnet_mechanisms.__path__[0].rpartition("/")[0]
    environment = {"PYTHONPATH": path, "PATH": ""}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
    with pytest.raises(ImportError, match="residual_alignmnet"):
        from resnet_mechanisms import residual_alignmnet  # noqa: F401
