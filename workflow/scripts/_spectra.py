"""What the commands that measure networks share: their outputs."""

from resnet_mechanisms import files, provenance, spectra
from resnet_mechanisms.tables import write


def output_options(parser):
    """Add the options for what `write_spectra` writes."""
    for option in ("--spectra", "--rows", "--per-block"):
        parser.add_argument(option, required=True)


def write_spectra(data, args, **facts):
    """Write what `spectra.measure` returns to the files that the options name; `facts` and the
    options --measure and --threads go to its provenance."""
    compressed = {name: {"zlib": True} for name, value in data.items() if value.dtype.kind == "f"}
    with files.atomically(args.spectra) as partial:
        data.to_netcdf(partial, engine="h5netcdf", encoding=compressed)
    write(spectra.rows(data), args.rows)
    write(spectra.per_block(data), args.per_block)
    provenance.write(args.spectra, **facts, measure=args.measure, threads=args.threads)
