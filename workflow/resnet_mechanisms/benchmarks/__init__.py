"""What the library costs in time beside the ways one would go without it; see `make bench`."""
