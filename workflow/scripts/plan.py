"""Say what a study takes before any of it runs."""

import argparse
import json
import os
from pathlib import Path

from _command import run
from resnet_mechanisms import plan
from resnet_mechanisms.config import resolve


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, type=json.loads, help="of the study, JSON")
    parser.add_argument(
        "--jobs", required=True, type=json.loads, help="number of jobs of the other rules, JSON"
    )
    parser.add_argument("--gpu", type=int, default=0, help="whether networks are on a GPU")
    parser.add_argument("--results", type=Path, default=Path("results"), help="its folder")
    args = parser.parse_args()
    study = resolve(args.config, check_files=False)
    jobs = {
        "train": list(study.networks),
        "measure_spectra": [path for path in study.networks if study.measured(path)],
        "measure_gradients": study.followed,
        **args.jobs,
    }
    jobs = {rule: of for rule, of in jobs.items() if of}
    found = plan.stages(study, jobs, args.results / "benchmarks", bool(args.gpu))
    # What a container or taskset leaves of the machine's; macOS cannot tell.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(plan.text(found, len(study.networks), cores))


if __name__ == "__main__":
    run(main)
