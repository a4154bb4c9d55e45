"""Neural Collapse of the last layer's features (Papyan, Han & Donoho 2020), on training data.

With class means mu_c, their mean mu_G, M = [mu_c - mu_G] (d x C), the within-class covariance
Sw = 1/n sum (h - mu_c)(h - mu_c)^T and the between-class covariance Sb = M M^T / C.
"""

import torch

# Features are computed in float32: class means closer than this share of the widest are the same.
RESOLVED = 1e-6


def neural_collapse(features, labels, weight, bias):
    """NC1 to NC4 as a dict of floats; all fall to 0 under Neural Collapse.

    features: n x d, float64 for accuracy; labels: n, every class 0..C-1 present; weight, bias: the
    classifier's, C x d and C.
    nc1: tr(Sw pinv(Sb)), the pseudo-inverse on the C - 1 directions that Sb spans; not divided by
    C; NaN where the means span fewer directions (networks that map several classes to one point).
    nc2_norm: standard deviation (over C - 1) over mean of the norms ||mu_c - mu_G||.
    nc2_angle: mean over c != c' of |cos(mu_c - mu_G, mu_c' - mu_G) + 1/(C-1)|.
    nc3: || W/||W||_F - M^T/||M||_F ||_F^2.
    nc4: share of samples that the classifier and the nearest class mean put into different classes.
    Raises ValueError where a class has no sample.
    """
    classes = len(weight)
    one_hot = torch.nn.functional.one_hot(labels, classes).to(features.dtype)
    counts = one_hot.sum(0)
    if (counts == 0).any():
        raise ValueError(f"no sample of class {int((counts == 0).nonzero()[0])}")
    means = (one_hot.T @ features) / counts[:, None]
    centred = means - means.mean(0)
    within = features - means[labels]

    # On the span of M: with M^T = P S Q^T (C x d), pinv(Sb) = C Q S^-2 Q^T, so NC1 needs no d x d
    # matrix.
    _, s, directions = torch.linalg.svd(centred, full_matrices=False)
    number = min(classes - 1, len(s))
    if s[number - 1] > RESOLVED * s[0]:
        projected = within @ directions[:number].T / s[:number]
        nc1 = (classes * projected.square().sum() / len(features)).item()
    else:
        nc1 = float("nan")

    norms = centred.norm(dim=1)
    cosines = (centred / norms[:, None]) @ (centred / norms[:, None]).T
    others = ~torch.eye(classes, dtype=torch.bool, device=features.device)
    nearest = torch.cdist(features, means).argmin(1)
    predicted = (features @ weight.T + bias).argmax(1)
    return {
        "nc1": nc1,
        "nc2_norm": (norms.std() / norms.mean()).item(),
        "nc2_angle": (cosines[others] + 1 / (classes - 1)).abs().mean().item(),
        "nc3": (weight / weight.norm() - centred / centred.norm()).square().sum().item(),
        "nc4": (nearest != predicted).double().mean().item(),
    }
