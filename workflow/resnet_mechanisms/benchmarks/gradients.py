"""Cost of measuring gradients of random networks: linear in depth and in the number of networks,
and beside the loop one would write.

The loop takes one network, one kind and one depth at a time: a forward pass, and automatic
differentiation of a random combination of the outputs with respect to the first pre-activations,
all inputs at once, batch statistics frozen. Ours carries derivatives forward, networks together,
all kinds with the same weights, and has every depth in one pass. Clock: CPU time of this process,
on one thread; medians of repetitions, in each of which all cases run in turn.
"""

import numpy as np
import pandas as pd
import torch

from .. import gradients
from .jacobian_svd import clocked

REPETITIONS = 5
WHAT = "Gradients of random networks"
SETTINGS = dict(width=256, batch=64, input_dimension=128, networks=8, seed=0)
DEPTHS = (1, 2, 4, 8, 16, 32)
SWEEPS = {"depth": (8, 16, 32, 64), "networks": (4, 8, 16, 32)}
OURS, LOOP = "ours", "loop over networks, kinds and depths"


def kinds(depths):
    """The kinds of network that are timed."""
    return [
        gradients.plain("none", depths),
        gradients.plain("batch", depths),
        gradients.resnet("batch", depths, 1.0),
    ]


def loop(variants, settings):
    """The moments of `gradients.hidden_moments`, (variance, covariance) by variant and depth, one
    network, kind and depth after another."""
    width, batch, dimension = (settings[k] for k in ("width", "batch", "input_dimension"))
    found = {}
    for variant in variants:
        for depth in variant.depths:
            moments = []
            for k in range(settings["networks"]):
                torch.manual_seed(k)
                x = torch.randn(batch, dimension) @ torch.randn(dimension, width) / dimension**0.5
                first = x.requires_grad_()
                for _ in range(depth):
                    z = x
                    if variant.normalisation == "batch":
                        z = (z - z.mean(0).detach()) / z.detach().std(0, unbiased=False)
                    step = torch.relu(z) @ (torch.randn(width, width) * (2 / width) ** 0.5)
                    x = variant.branch * step + variant.skip * x
                out = (x @ torch.randn(width)).sum()
                (g,) = torch.autograd.grad(out, first)
                gram = g @ g.T / width
                own = gram.diagonal().sum()
                pairs = (gram.sum() - own) / (batch * (batch - 1))
                moments.append((float(own) / batch, float(pairs)))
            found[variant, depth] = np.mean(moments, 0)
    return found


def run(repetitions=REPETITIONS, settings=SETTINGS, depths=DEPTHS, sweeps=SWEEPS):
    """A table of case, depth, networks and seconds; prints nothing. Rows of case "depth" and
    "networks" vary that alone; those of OURS and LOOP take `depths` together."""
    cases = [("depth", (depth,), settings["networks"]) for depth in sweeps["depth"]]
    cases += [("networks", (min(sweeps["depth"]),), count) for count in sweeps["networks"]]
    cases += [(OURS, depths, settings["networks"]), (LOOP, depths, settings["networks"])]
    seconds = {case: [] for case in cases}
    for _ in range(repetitions):
        for case in cases:
            name, at, count = case
            measure = loop if name == LOOP else gradients.hidden_moments
            more = settings | {"networks": count}
            seconds[case].append(clocked(measure, kinds(at), more)[0])
    rows = [
        {
            "case": name, "depth": max(at), "networks": count,
            "seconds": float(np.median(times)), "lowest": min(times), "highest": max(times),
        }
        for (name, at, count), times in seconds.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)


def exponent(table, name):
    """Exponent of seconds in `name` (depth or networks) by least squares on logarithms."""
    rows = table[table["case"] == name]
    return np.polyfit(np.log(rows[name]), np.log(rows["seconds"]), 1)[0]


def summary(table):
    """What the table says, in three lines."""
    by_case = table.set_index("case")["seconds"]
    return "\n".join(
        [
            f"  seconds ~ depth^{exponent(table, 'depth'):.2f}",
            f"  seconds ~ networks^{exponent(table, 'networks'):.2f}",
            f"  the loop takes {by_case[LOOP] / by_case[OURS]:.1f} times as long as ours",
        ]
    )
