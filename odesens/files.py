"""Files of solutions: npz archives that NumPy alone can read.

Owns: what is in them, pytrees as JSON. Must not know: solutions.
"""

import json
import os
import tempfile
import zipfile
import zlib
from collections import namedtuple
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .view import COUNTS, View

FORMAT = 1
EVENTS = ("t", "which", "component", "before", "after")


def write(path, view: View, extra: dict) -> Path:
    arrays: dict[str, Any] = {"t": view.t, "retcode": view.codes}
    arrays.update({f"stats/{k}": x for k, x in view.counts.items()})
    arrays.update({f"vars/{k}": x for k, x in extra.items()})
    meta = {"format": FORMAT, "u": _structure(view.u, "u", arrays), "lead": view.lead, "names": view.names}
    meta.update(alg=view.alg, sensealg=view.sensealg, vars=list(extra))
    if view.events is not None:
        events = jax.tree.map(lambda x: np.asarray(x), view.events)
        meta["events"] = {k: _structure(getattr(events, k), f"events/{k}", arrays) for k in (*EVENTS, "count")}
    arrays["meta"] = np.array(json.dumps(meta))
    path = Path(path)
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    handle, temporary = tempfile.mkstemp(suffix=".npz", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def _structure(x, name: str, arrays: dict):
    """x as JSON, in which an array is its name among the arrays."""
    if x is None:
        return None
    if isinstance(x, dict):
        if not all(isinstance(k, str) for k in x):
            raise TypeError(f"save needs mappings with texts as keys, got {list(x)[:5]}")
        return {"dict": {k: _structure(v, f"{name}/{k}", arrays) for k, v in x.items()}}
    fields = getattr(x, "_fields", None) if isinstance(x, tuple) else None
    if fields is not None:
        parts = {k: _structure(getattr(x, k), f"{name}/{k}", arrays) for k in fields}
        return {"namedtuple": type(x).__name__, "fields": parts}
    if isinstance(x, (list, tuple)):
        parts = [_structure(v, f"{name}/{i}", arrays) for i, v in enumerate(x)]
        return {"list" if isinstance(x, list) else "tuple": parts}
    children = jax.tree_util.tree_leaves_with_path(x, is_leaf=lambda y: y is not x)
    if len(children) == 1 and not children[0][0]:
        arrays[name] = np.asarray(x)
        return {"array": name}
    names = [str(getattr(path[0], "name", getattr(path[0], "key", i))) for i, (path, _) in enumerate(children)]
    return {"dict": {k: _structure(v, f"{name}/{k}", arrays) for k, (_, v) in zip(names, children, strict=True)}}


def _rebuilt(x, arrays):
    if x is None:
        return None
    if "array" in x:
        return arrays[x["array"]]
    if "dict" in x:
        return {k: _rebuilt(v, arrays) for k, v in x["dict"].items()}
    if "namedtuple" in x:
        return namedtuple(x["namedtuple"], list(x["fields"]))(*[_rebuilt(v, arrays) for v in x["fields"].values()])
    if "list" in x:
        return [_rebuilt(v, arrays) for v in x["list"]]
    return tuple(_rebuilt(v, arrays) for v in x["tuple"])


def read(path: Any) -> tuple[View, dict]:
    """What `write` wrote: the view and the values by name."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {k: file[k] for k in file.files}
        meta = json.loads(str(arrays["meta"]))
        version = int(meta["format"])
    except FileNotFoundError:
        raise
    except (
        AttributeError,
        KeyError,
        OSError,
        EOFError,
        TypeError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(f"{path} is not a solution that odesens saved (sol.save), or it is damaged") from error
    if version > FORMAT:
        raise ValueError(f"{path} has format {version}, this version of odesens reads up to {FORMAT}: update odesens")
    events = None
    if "events" in meta:
        fields = {k: _rebuilt(v, arrays) for k, v in meta["events"].items()}
        events = namedtuple("Events", list(fields))(**fields)
    view = View(
        t=arrays["t"],
        u=_rebuilt(meta["u"], arrays),
        lead=meta["lead"],
        names=None if meta["names"] is None else tuple(meta["names"]),
        events=events,
        codes=arrays["retcode"],
        counts={k: arrays[f"stats/{k}"] for k in COUNTS},
        alg=meta["alg"],
        sensealg=meta["sensealg"],
    )
    return view, {k: arrays[f"vars/{k}"] for k in meta["vars"]}
