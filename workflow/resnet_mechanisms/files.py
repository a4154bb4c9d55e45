"""Files that are whole or not there, and that are known when they are damaged."""

import contextlib
import errno
import hashlib
import json
import os
from pathlib import Path

from .errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def atomically(path):
    """A path beside `path`, of the same suffix, to write to; renamed to it when it is written and
    on the disk. Whatever happens in between leaves the old file.

    What a killed process leaves is overwritten by the next: only one may write a file at a time.
    """
    path = Path(path)
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    # The renaming, too, should outlive a crash of the machine; not every file system can do that.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_text(text, path):
    """Write a text file atomically."""
    with atomically(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_arrays(arrays, path):
    """Write NumPy arrays, by name, to an .npz atomically."""
    import numpy as np  # here, as the workflow imports this module and has no arrays

    with atomically(path) as partial:
        np.savez_compressed(partial, **arrays)


def sha256(path):
    """SHA-256 of a file, 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def provenance_of(path):
    """Path of the record that `provenance.write` leaves beside a file."""
    return Path(f"{path}.provenance.json")


def check(path):
    """Return the path of a file whose SHA-256 is the one that its provenance names, if any does.

    Raises UserError where it is missing, or damaged: then it is put aside as NAME.damaged, so that
    the next run makes it anew.
    """
    if not Path(path).is_file():
        raise UserError(f"{path}: is not there; run again to make it")
    try:
        said = json.loads(provenance_of(path).read_text(encoding="utf-8")).get("sha256")
    except (OSError, ValueError):
        return path
    found = sha256(path)
    if said is not None and found != said:
        put_aside(path, f"its SHA-256 is {found[:12]}..., was {said[:12]}... when it was written")
    return path


def put_aside(path, reason):
    """Rename a damaged file to NAME.damaged and raise the UserError that says so."""
    with contextlib.suppress(FileNotFoundError):  # another job has done it
        os.replace(path, f"{path}.damaged")
    raise UserError(
        f"{path}: damaged ({reason}); put aside as {Path(path).name}.damaged, "
        "run again to make it anew"
    )


def seal(content):
    """Bytes with their SHA-256 before them."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def unseal(sealed):
    """The bytes that `seal` was given; raises ValueError where these are not what it returned."""
    digest, _, content = sealed.partition(b"\n")
    found = hashlib.sha256(content).hexdigest()
    if digest != found.encode():
        raise ValueError(
            f"SHA-256 is {found[:12]}..., was {digest[:12].decode('ascii', 'replace')}..."
        )
    return content
