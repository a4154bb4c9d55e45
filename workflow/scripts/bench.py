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


def time_scale(results):
    """Planning ten thousand configurations, beside as many empty rules: scale.csv."""
    from resnet_mechanisms.benchmarks import scale

    _timed(scale, results / "benchmarks" / "scale.csv")


def measure_efficiency(results):
    """How busy the last run of a whole study kept its cores: efficiency.csv.

    Seconds inside the jobs whose benchmark lies in results/benchmarks, over cores times the seconds
    of the run.
    """
    import json

    import pandas as pd

    from resnet_mechanisms.plan import measured_seconds
    from resnet_mechanisms.tables import write

    record = results / "provenance.json"
    run = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    if run.get("outcome") != "finished" or not run["cores"]:
        print(f"{record} is not of a finished run on this machine: nothing to say of its cores")
        return
    began = record.stat().st_mtime - run["seconds"]
    files = [path for path in results.glob("benchmarks/**/*.tsv") if path.stat().st_mtime > began]
    inside = sum(measured_seconds(path) or 0 for path in files)
    whole = run["cores"] * run["seconds"]
    row = {"jobs": len(files), "cores": run["cores"], "seconds": run["seconds"]}
    row |= {"seconds_inside_jobs": inside, "efficiency": inside / whole}
    write(pd.DataFrame([row]), results / "benchmarks" / "efficiency.csv")
    print(
        f"{len(files)} jobs: {inside:.0f} s inside them, of {whole:.0f} s that {run['cores']} "
        f"cores had in {run['seconds']:.0f} s: {inside / whole:.2f}"
    )


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
    """What each network of a study took, where it has been run, beside what its resources were
    planned with: costs.csv."""
    import pandas as pd
    import yaml

    from resnet_mechanisms import plan
    from resnet_mechanisms.config import resolve
    from resnet_mechanisms.tables import write

    study = resolve(yaml.safe_load(config.read_text(encoding="utf-8")), check_files=False)
    rows = []
    for rule, (folder, cost) in plan.PER_NETWORK.items():
        for path, network in study.networks.items():
            measured = results / "benchmarks" / folder / f"{path}.tsv"
            if not measured.is_file():
                continue
            job = pd.read_csv(measured, sep="\t", na_values="-").iloc[0]
            seconds, megabytes = cost(study, network)
            row = {"rule": rule, "network": path}
            row |= {"seconds": job["s"], "seconds_expected": round(seconds, 1)}
            row |= {"megabytes": job["max_rss"], "megabytes_expected": round(megabytes)}
            rows.append(row)
    if not rows:
        print(f"No network of {config} has been run in {results}: nothing to compare")
        return
    table = pd.DataFrame(rows)
    for what in ("seconds", "megabytes"):
        table[f"{what}_ratio"] = (table[f"{what}_expected"] / table[what]).round(2)
    write(table, results / "benchmarks" / "costs.csv")
    print("Expected over measured (smallest, median, largest):")
    for rule, of in table.groupby("rule", sort=False):
        for what in ("seconds", "megabytes"):
            ratio = of[f"{what}_ratio"]
            print(f"  {rule}, {what}: {ratio.min():.2f}, {ratio.median():.2f}, {ratio.max():.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    svd = commands.add_parser("svd", help="top singular triplets of Residual Jacobians")
    train = commands.add_parser("training", help="training throughput beside a plain loop")
    gradient = commands.add_parser("gradients", help="gradients of random networks")
    cost = commands.add_parser("costs", help="planned against used resources of a finished study")
    cost.add_argument("--config", type=Path, default=Path("config.yaml"), help="of the study")
    scale = commands.add_parser("scale", help="planning ten thousand configurations")
    busy = commands.add_parser("efficiency", help="how busy the last run kept the cores")
    for command in (svd, train, gradient, cost, scale, busy):
        command.add_argument("--results", type=Path, default=Path("results"), help="its folder")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the products of NumPy and SciPy, set before they load
    if args.command == "svd":
        time_svd(args.results)
    elif args.command == "training":
        time_training(args.results)
    elif args.command == "gradients":
        time_gradients(args.results)
    elif args.command == "scale":
        time_scale(args.results)
    elif args.command == "efficiency":
        measure_efficiency(args.results)
    else:
        compare_costs(args.results, args.config)


if __name__ == "__main__":
    run(main)
