"""Finished batches on disk, so that a job that was killed goes on where it was.

Owns: the folder, its files, telling one job from another. Must not know: what a batch is made of.

Each batch is one file, written under another name and then renamed, so that a file that is there is whole. Files carry
the job's fingerprint: its program and the bytes of its inputs.
"""

import hashlib
import os
import re
from pathlib import Path

import jax
import numpy as np


class Folder:
    """The files of one job in a folder."""

    def __init__(self, path, fingerprint: str):
        self.path = Path(path)
        self.fingerprint = fingerprint
        self.path.mkdir(parents=True, exist_ok=True)

    def file(self, number: int) -> Path:
        return self.path / f"batch_{number:06d}.npz"

    def finished(self) -> int:
        """How many batches, from the first on, are there. All processes get the answer of the first one."""
        count = 0
        while self.file(count).exists():
            count += 1
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            count = int(multihost_utils.broadcast_one_to_all(np.int32(count)))
        return count

    def read(self, number: int) -> list[np.ndarray]:
        with np.load(self.file(number)) as data:
            if str(data["fingerprint"]) != self.fingerprint:
                raise ValueError(
                    f"checkpoint: {self.file(number)} is of another job (another problem, options, inputs, batch size, "
                    "or version): give an empty folder, or remove its files"
                )
            return [data[f"array_{j}"] for j in range(len(data.files) - 1)]

    def write(self, number: int, arrays: list) -> None:
        """Write a batch, whole or not at all; only the first process does."""
        if jax.process_index():
            return
        partial = self.path / f"batch_{number:06d}.{os.getpid()}.partial"
        named = {f"array_{j}": np.asarray(x) for j, x in enumerate(arrays)}
        named["fingerprint"] = np.array(self.fingerprint)
        with open(partial, "wb") as stream:
            np.savez(stream, allow_pickle=False, **named)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self.file(number))


def fingerprint(programs: list, arrays: list, *parts) -> str:
    """A digest of programs (jaxprs), the arrays they work on and whatever else decides the result."""
    digest = hashlib.sha256()
    for program in programs:
        text = str(program.jaxpr)
        digest.update(re.sub(r"0x[0-9a-f]+", "", text).encode())
    for x in arrays:
        is_key = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        x = np.asarray(jax.random.key_data(x) if is_key else x)
        digest.update(f"{x.dtype.str}{x.shape}".encode())
        digest.update(x.tobytes())
    digest.update(repr(parts).encode())
    return digest.hexdigest()
