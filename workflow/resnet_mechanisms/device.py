"""The device and threads that a command computes with."""

import torch

from . import gpus
from .errors import UserError


def use(name, threads, gpu=1, jobs_per_gpu=1):
    """Set torch up for `threads` and return the device of `name` (auto, cpu or cuda).

    gpu: how many the job was given; with 0 the device is the CPU. On one of several GPUs the
    process holds a lease (`gpus.lease`), of which `jobs_per_gpu` may share one.

    Subnormal numbers are flushed to zero: under weight decay dead weights shrink into that range,
    where processors are many times slower. Raises UserError for cuda without a GPU.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if name == "cuda" and not gpu:
        raise UserError(
            "device: cuda, but this job's resource gpu is 0; expected 1, or device: cpu"
        )
    if name == "cpu" or not gpu:
        return torch.device("cpu")
    gpus.lease(jobs_per_gpu)
    if not torch.cuda.is_available():
        if name == "cuda":
            raise UserError("device: cuda, but torch finds none here; expected auto or cpu")
        return torch.device("cpu")
    # On a CPU the operations used here are deterministic, and asking for it takes a second.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    return torch.device("cuda")
