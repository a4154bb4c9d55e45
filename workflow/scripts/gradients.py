"""Measure random networks at initialisation: gradient covariance against depth (theorems),
gradients of a scalar input (toy), which rectifiers are active (activations), paths, linear regions.
"""

import argparse
import json

from _command import device_of, device_options, run
from resnet_mechanisms import files, provenance
from resnet_mechanisms.tables import write

# Commands with what they write.
COMMANDS = {
    "theorems": {"table": "gradient_covariance"},
    "toy": {"gradients": "gradient curves (npz)", "autocorrelation": "of these, a table"},
    "activations": {
        "coactivation": "table", "patterns": "table activation_patterns", "rasters": "npz",
    },
    "paths": {"counts": "table path_counts", "lengths": "table path_lengths"},
    "linear_regions": {"table": "linear_regions"},
}  # fmt: skip


def theorems(args, where):
    from resnet_mechanisms import gradients

    write(gradients.theorem_table(args.settings, where), args.table)
    return [args.table]


def toy(args, where):
    from resnet_mechanisms import gradients

    write(gradients.autocorrelation_table(args.settings, where), args.autocorrelation)
    files.write_arrays(gradients.figure_curves(args.settings, where), args.gradients)
    return [args.autocorrelation]


def activations(args, where):
    from resnet_mechanisms import activations

    write(activations.coactivation_table(args.settings, where), args.coactivation)
    table, arrays = activations.patterns(args.settings, where)
    write(table, args.patterns)
    files.write_arrays(arrays, args.rasters)
    return [args.coactivation, args.patterns]


def paths(args, where):
    from resnet_mechanisms import paths

    write(paths.path_counts_table(args.settings, where), args.counts)
    write(paths.path_lengths_table(args.settings, where), args.lengths)
    return [args.counts, args.lengths]


def linear_regions(args, where):
    from resnet_mechanisms import linear_regions

    write(linear_regions.linear_regions_table(args.settings, where), args.table)
    return [args.table]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, written in COMMANDS.items():
        command = commands.add_parser(name)
        for option, what in written.items():
            command.add_argument(f"--{option}", required=True, help=what)
        command.add_argument(
            "--settings", required=True, type=json.loads, help="its part of the config, JSON"
        )
        device_options(command)
    args = parser.parse_args()
    where = device_of(args)
    for table in globals()[args.command](args, where):
        provenance.write(table, settings=args.settings, device=str(where), threads=args.threads)


if __name__ == "__main__":
    run(main)
