"""The device and threads that a command computes with."""

import torch

from .errors import UserError


def use(name, threads):
    """Set torch up for `threads` and return the device of `name` (auto, cpu or cuda).

    Subnormal numbers are flushed to zero: under weight decay dead weights shrink into that range,
    where processors are many times slower. Raises UserError for cuda without one.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device: cuda, but torch finds none here; expected auto or cpu")
    if name == "cuda":
        # On a CPU the operations used here are deterministic, and asking for it takes a second.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    return torch.device(name)
