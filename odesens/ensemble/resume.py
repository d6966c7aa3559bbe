"""The batches of an ensemble file by file: those that a folder has are read, the others run and written.

Owns: going on after a job was killed. Must not know: what a file looks like (`checkpoint`).
"""

import jax
import jax.numpy as jnp
from jax.core import Tracer

from . import checkpoint
from .batch import pad
from .job import Job, Program, length, part, tokens
from .solution import EnsembleSolution


def resume(job: Job, path) -> EnsembleSolution:
    """The solution of a job whose finished batches are in the folder `path`."""
    plan, found = job.plan, job.solver.trajectories
    arrays = [*jax.tree.leaves((found.shared, found.rows)), *jax.tree.leaves(job.eprob.u_init)]
    if not plan.count:
        return job.run()
    u, token, ys = job.first(found.shared, found.rows), next(tokens), []
    folder, begin, ready = None, 0, 0
    for k, size in enumerate([plan.size] * plan.batches + [plan.rest] * bool(plan.rest)):
        some = part(found.rows, begin, begin + size)
        program = Program(job.batch, job.algorithm, found.shared, u, pad(some, size - length(some)))
        if any(isinstance(x, Tracer) for x in (*program.args, *program.consts)):
            raise TypeError(
                "checkpoint= writes files, which needs an eager call that is not being transformed: leave it out under "
                "jit, grad and vmap"
            )
        if folder is None:
            folder = checkpoint.Folder(path, _fingerprint(job, program, arrays))
            ready = folder.finished()
        if k < ready:
            leaves = [jnp.asarray(x) for x in folder.read(k)]
        else:
            leaves = program.leaves()
            folder.write(k, leaves)
        u, y = jax.tree.unflatten(program.tree, leaves)
        ys.append(y)
        begin += size
        if job.report is not None:
            job.report(token, min(begin, plan.count), plan.count)
    return job.solution(found.shared, found.rows, u, ys)


def _fingerprint(job: Job, program: Program, arrays: list) -> str:
    found = job.solver.trajectories
    field = job.solver.prepared(found.shared, jax.tree.map(lambda x: x[0], found.rows)).call.spec.field
    programs = [program.jaxpr, field.program.jaxpr]
    return checkpoint.fingerprint(programs, [*arrays, *program.consts], job.plan, jax.__version__)
