"""Judge every claim of a claims file on the tables, and write the verdicts."""

import argparse
from pathlib import Path

from _command import run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=Path, required=True, help="the claims, YAML")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--out", type=Path, required=True, help="the verdicts, CSV")
    parser.add_argument("--page", type=Path, required=True, help="the same to read, HTML")
    arguments = parser.parse_args()

    from resnet_mechanisms import claims, claims_page, files, provenance, tables

    entries = claims.read_claims(arguments.claims)
    paths = {name: arguments.tables / f"{name}.csv" for name in claims.TABLES}
    found = {name: tables.read([path]) for name, path in paths.items() if path.exists()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    verdicts = claims.evaluate(entries, found)
    tables.write(verdicts, arguments.out)
    files.write_text(claims_page.page(verdicts), arguments.page)
    provenance.write(arguments.out, inputs=[str(paths[name]) for name in found])


if __name__ == "__main__":
    run(main)
