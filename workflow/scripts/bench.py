"""Measure what the library's engines cost beside the usual ways; a table and a figure of it."""

import argparse
import os
from pathlib import Path

from _command import run


def time_svd(results):
    """Singular triplets, ours beside the usual ways: jacobian_svd.csv and its figure."""
    from resnet_mechanisms import device, provenance
    from resnet_mechanisms.benchmarks import jacobian_svd
    from resnet_mechanisms.figures.jacobian_svd import draw
    from resnet_mechanisms.figures.style import save, use_style
    from resnet_mechanisms.tables import write

    device.use("cpu", 1)
    table = jacobian_svd.run(results / "state" / "benchmark")
    out = results / "benchmarks" / "jacobian_svd.csv"
    out.parent.mkdir(parents=True, exist_ok=True)
    write(table, out)
    repetitions, count = jacobian_svd.REPETITIONS, jacobian_svd.COUNT
    provenance.write(out, repetitions=repetitions, triplets=count, device="cpu", threads=1)
    use_style()
    save(draw([out]), out.with_suffix(".pdf"), out.with_suffix(".png"))
    print("Times the seconds of ours:")
    print(jacobian_svd.summary(table))


def time_training(results):
    """Images trained on in a CPU second, ours beside a plain loop: training.csv."""
    from resnet_mechanisms.benchmarks import training

    _timed(training, results / "benchmarks" / "training.csv", recipe=training.RECIPE)


def time_gradients(results):
    """Gradients of random networks, against depth and number, ours beside a loop: gradients.csv."""
    from resnet_mechanisms.benchmarks import gradients

    _timed(gradients, results / "benchmarks" / "gradients.csv", settings=gradients.SETTINGS)


def _timed(benchmark, out, **facts):
    """Run a benchmark on one thread, write its table and say what it comes to."""
    from resnet_mechanisms import device, provenance
    from resnet_mechanisms.tables import write

    device.use("cpu", 1)
    table = benchmark.run()
    out.parent.mkdir(parents=True, exist_ok=True)
    write(table, out)
    repetitions = benchmark.REPETITIONS
    provenance.write(out, repetitions=repetitions, device="cpu", threads=1, **facts)
    print(f"{benchmark.WHAT}:")
    print(benchmark.summary(table))


def compare_costs(results, config):
    """What measuring each network of a study took, where it has been run, beside what its resources
    were planned with: spectra_costs.csv."""
    import pandas as pd
    import yaml

    from resnet_mechanisms import costs
    from resnet_mechanisms.config import resolve
    from resnet_mechanisms.tables import write

    study = resolve(yaml.safe_load(config.read_text(encoding="utf-8")), check_files=False)
    rows = []
    for path, network in study.networks.items():
        measured = results / "benchmarks" / "spectra" / f"{path}.tsv"
        if not measured.is_file():
            continue
        job = pd.read_csv(measured, sep="\t", na_values="-").iloc[0]
        seconds, megabytes = costs.spectra_cost_in(study, network)
        row = {"network": path, "seconds": job["s"], "seconds_expected": round(seconds, 1)}
        row |= {"megabytes": job["max_rss"], "megabytes_expected": round(megabytes)}
        rows.append(row)
    if not rows:
        print(f"No network of {config} has been measured in {results}: nothing to compare")
        return
    table = pd.DataFrame(rows)
    for what in ("seconds", "megabytes"):
        table[f"{what}_ratio"] = (table[f"{what}_expected"] / table[what]).round(2)
    write(table, results / "benchmarks" / "spectra_costs.csv")
    print("Measuring a network, expected over measured (smallest, median, largest):")
    for what in ("seconds", "megabytes"):
        ratio = table[f"{what}_ratio"]
        print(f"  {what}: {ratio.min():.2f}, {ratio.median():.2f}, {ratio.max():.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    svd = commands.add_parser("svd", help="top singular triplets of Residual Jacobians")
    train = commands.add_parser("training", help="training throughput beside a plain loop")
    gradient = commands.add_parser("gradients", help="gradients of random networks")
    cost = commands.add_parser("costs", help="planned against used resources of a finished study")
    cost.add_argument("--config", type=Path, default=Path("config.yaml"), help="of the study")
    for command in (svd, train, gradient, cost):
        command.add_argument("--results", type=Path, default=Path("results"), help="its folder")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the products of NumPy and SciPy, set before they load
    if args.command == "svd":
        time_svd(args.results)
    elif args.command == "training":
        time_training(args.results)
    elif args.command == "gradients":
        time_gradients(args.results)
    else:
        compare_costs(args.results, args.config)


if __name__ == "__main__":
    run(main)
