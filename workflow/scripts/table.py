"""Join the rows of all network configurations into one table."""

import argparse

from _command import run
from resnet_mechanisms import provenance
from resnet_mechanisms.tables import degradation, read, write


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--input", required=True, nargs="*")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    table = read(args.input)
    write(degradation(table) if args.name == "degradation" else table, args.out)
    provenance.write(args.out, inputs=args.input)


if __name__ == "__main__":
    run(main)
