"""Neural Collapse on features whose collapse is known by hand, and against the definition with pinv
in numpy."""

import numpy as np
import pytest
import torch

from resnet_mechanisms.neural_collapse import neural_collapse


def test_exact_simplex_frame():
    classes = 4
    frame = torch.eye(classes, dtype=torch.double) - 1 / classes
    labels = torch.arange(classes).repeat_interleave(5)
    measured = neural_collapse(
        frame[labels] + 7,
        labels,
        3 * frame,
        torch.zeros(classes, dtype=torch.double)
        - 3 * (frame @ torch.full((classes,), 7.0, dtype=torch.double)),
    )
    assert measured == pytest.approx(dict(nc1=0, nc2_norm=0, nc2_angle=0, nc3=0, nc4=0), abs=1e-12)


def test_two_classes_on_a_line_by_hand():
    """Means -1 and 1, deviations +-0.1: Sw = 0.01, Sb = 1, so NC1 = 0.01. The classifier points the
    wrong way."""
    features = torch.tensor([[-1.1], [-0.9], [0.9], [1.1]], dtype=torch.double)
    labels = torch.tensor([0, 0, 1, 1])
    weight = torch.tensor([[1.0], [-1.0]], dtype=torch.double)
    measured = neural_collapse(features, labels, weight, torch.zeros(2, dtype=torch.double))
    # NC3: ||w - m||^2 of two opposite unit vectors = 4. NC4: every sample disagrees.
    assert measured == pytest.approx(dict(nc1=0.01, nc2_norm=0, nc2_angle=0, nc3=4, nc4=1))


def test_random_features_against_the_definition():
    rng = np.random.default_rng(0)
    classes, n, d = 3, 60, 5
    labels = np.arange(n) % classes
    features = rng.normal(size=(n, d)) + 2 * rng.normal(size=(classes, d))[labels]
    weight, bias = rng.normal(size=(classes, d)), rng.normal(size=classes)
    means = np.stack([features[labels == c].mean(0) for c in range(classes)])
    m = (means - means.mean(0)).T
    residual = features - means[labels]
    within, between = residual.T @ residual / n, m @ m.T / classes
    norms = np.linalg.norm(m, axis=0)
    cosines = (m / norms).T @ (m / norms)
    off = cosines[~np.eye(classes, dtype=bool)]
    nearest = ((features[:, None] - means) ** 2).sum(2).argmin(1)
    expected = dict(
        nc1=np.trace(within @ np.linalg.pinv(between, rcond=1e-10)),
        nc2_norm=norms.std(ddof=1) / norms.mean(),
        nc2_angle=np.abs(off + 1 / (classes - 1)).mean(),
        nc3=((weight / np.linalg.norm(weight) - m.T / np.linalg.norm(m)) ** 2).sum(),
        nc4=((features @ weight.T + bias).argmax(1) != nearest).mean(),
    )
    tensors = map(torch.tensor, (features, labels, weight, bias))
    assert neural_collapse(*tensors) == pytest.approx(expected, rel=1e-8)


def test_nc1_is_undefined_where_class_means_coincide():
    """Two classes at one point: float32 noise in their difference must not become a huge number."""
    labels = torch.arange(3).repeat_interleave(4)
    means = torch.tensor([[0.0, 0, 1], [1.0, 0, 0], [1.0, 1e-8, 0]], dtype=torch.double)
    generator = torch.Generator().manual_seed(0)
    features = means[labels] + torch.randn(12, 3, dtype=torch.double, generator=generator) * 1e-9
    measured = neural_collapse(features, labels, means, torch.zeros(3, dtype=torch.double))
    assert np.isnan(measured.pop("nc1")) and all(np.isfinite(v) for v in measured.values())


def test_a_class_without_samples():
    with pytest.raises(ValueError, match="class 1"):
        neural_collapse(torch.ones(2, 3), torch.tensor([0, 0]), torch.ones(2, 3), torch.ones(2))
