"""Write the explorer: one page with the networks of a study side by side, and its claims."""

import argparse
from functools import partial
from pathlib import Path

from _command import run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spectra", type=Path, nargs="*", default=[], help="spectra.nc of each")
    parser.add_argument("--claims", required=True, help="claims.yaml")
    parser.add_argument("--tables", required=True, type=Path, help="folder of the study's tables")
    parser.add_argument("--figures", nargs="*", default=[], help="names of the study's figures")
    parser.add_argument("--page", required=True, type=Path, help="where the page goes")
    parser.add_argument("--folder", required=True, type=Path, help="for data it does not hold")
    arguments = parser.parse_args()

    from resnet_mechanisms import claims, tables
    from resnet_mechanisms.explorer import collect, page

    entries = claims.read_claims(arguments.claims)
    frames = {name: arguments.tables / f"{name}.csv" for name in claims.TABLES}
    frames = {name: tables.read([path]) for name, path in frames.items() if path.is_file()}
    networks = map(collect.read, arguments.spectra)
    judged = partial(collect.claims_of, entries, frames, figures=arguments.figures)
    page.write(arguments.page, arguments.folder, networks, judged)


if __name__ == "__main__":
    run(main)
