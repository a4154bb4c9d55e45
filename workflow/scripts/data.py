"""Prepare one data set, cut to its first classes, as the .npz that the other commands read."""

import argparse
import json

from _command import run
from resnet_mechanisms import data_readers, datasets, files, provenance
from resnet_mechanisms.errors import UserError


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset", required=True, type=json.loads, help="the config's entry, JSON"
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--classes", required=True, type=int)
    parser.add_argument("--data-root", default=".")
    parser.add_argument(
        "--download", action="store_true", help="fetch public data that are not there"
    )
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    entry = {**args.dataset, "download": args.download}
    try:
        arrays = datasets.prepare(entry, args.classes, args.data_root)
    except UserError as error:
        raise UserError(f"datasets.{args.name}: {error}") from None
    files.write_arrays(arrays, args.out)
    facts = dict(dataset=args.dataset, name=args.name, classes=args.classes)
    sources = data_readers.checksums(args.dataset, args.data_root)
    provenance.write(args.out, **facts, source_sha256=sources)


if __name__ == "__main__":
    run(main)
