"""Files that are whole or not there, and that are known when they are damaged."""

import errno
import json
import os

import pytest

from resnet_mechanisms import files, provenance
from resnet_mechanisms.errors import UserError


def test_written_whole(tmp_path):
    path = tmp_path / "table.csv"
    with files.atomically(path) as partial:
        assert partial.suffix == ".csv"
        partial.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["table.csv"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_the_old_file_stays(tmp_path, error):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(type(error)), files.atomically(path) as partial:
        partial.write_text("new, cut sh")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_what_a_killed_process_left_is_overwritten(tmp_path):
    (tmp_path / "table.partial.csv").write_text("left")
    files.write_text("new", tmp_path / "table.csv")
    assert os.listdir(tmp_path) == ["table.csv"]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:70] + b"x" + b[71:], lambda b: b"", lambda b: b[65:]]
)
def test_sealed_bytes(damage):
    sealed = files.seal(b"weights and momentum")
    assert files.unseal(sealed) == b"weights and momentum"
    with pytest.raises(ValueError, match="SHA-256 is"):
        files.unseal(damage(sealed))


def test_a_damaged_file_is_put_aside(tmp_path):
    path = tmp_path / "checkpoints.pt"
    path.write_bytes(b"weights")
    provenance.write(path, device="cpu")
    assert files.check(path) == path
    path.write_bytes(b"weighty")
    with pytest.raises(UserError) as error:
        files.check(path)
    message = str(error.value)
    assert message.startswith(f"{path}: damaged (its SHA-256 is ")
    assert message.endswith("put aside as checkpoints.pt.damaged, run again to make it anew")
    assert not path.exists() and (tmp_path / "checkpoints.pt.damaged").exists()
    with pytest.raises(UserError, match="is not there; run again"):
        files.check(path)


def test_a_file_without_a_record_is_taken_as_it_is(tmp_path):
    path = tmp_path / "mine.npz"
    path.write_bytes(b"arrays")
    assert files.check(path) == path
    files.provenance_of(path).write_text("{")
    assert files.check(path) == path


def test_record(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a\n1\n")
    provenance.write(path, settings={"seed": 3})
    record = json.loads(files.provenance_of(path).read_text())
    # As `sha256sum` says.
    assert record["sha256"] == "309b0e45a73d3fc5325e2b6ed0a01ef8b9cde6b05a5633c1f893f970d52bfddc"
    assert record["settings"] == {"seed": 3}
    assert {
        "revision",
        "modified",
        "versions",
        "machine",
        "seconds",
        "cpu_seconds",
    } <= record.keys()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory")])
def test_too_little_memory_does_not_make_a_checkpoint_damaged(tmp_path, monkeypatch, error):
    import torch

    import _command

    def fail(*args, **options):
        raise error

    path = tmp_path / "checkpoints.pt"
    torch.save({"seeds": {}}, path)
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(type(error)):
        _command.read_checkpoints(path)
    assert os.listdir(tmp_path) == ["checkpoints.pt"]
