"""Events of a system as callbacks of a solve.

Owns: that translation. Must not know: how events are located or differentiated.
"""

from typing import Any

from .. import callbacks as cb
from ..fingerprint import Frozen
from .event_data import ContinuousEvent, DiscreteEvent, PeriodicEvent, PresetTimeEvent
from .generate import Generated, generate
from .model import SimplifiedSystem, unknown_leaves


class _Function(Frozen):
    """A generated function of (t, u, p), or of p alone, whose values are brought into the form that is wanted."""

    def __init__(self, generated: Generated, finish=lambda x: x):
        self.generated = generated
        self.finish = finish


class _Condition(_Function):
    def __call__(self, t, u, p):
        return self.finish(self.generated({"t": t, "u": u, **p._asdict()}))


class _Times(_Function):
    def __call__(self, p):
        return self.finish(self.generated(p._asdict()))


def callbacks(model: SimplifiedSystem) -> list:
    """The callbacks of a model's events, made once; jumps of the equations come first."""
    if "callbacks" not in model.made:
        events = [_callback(model, event) for event in model.flat.events]
        times = [model.parse(e) for e in model.flat.discontinuities]
        jumps = [cb.Stops(_Times(generate(model.terms, times, model.places)), True)] if times else []
        model.made["callbacks"] = [*jumps, *events]
    return model.made["callbacks"]


def _callback(model: SimplifiedSystem, event) -> Any:
    terms = model.terms
    affect, end = _affect(model, event), event.terminate
    program = lambda nodes: generate(terms, nodes, model.places)
    node = lambda e: model.current(model.parse(e))
    if isinstance(event, ContinuousEvent):
        values = program([node(e) for e in event.condition])
        # every condition has the same effect, so its number is not asked for
        return cb.ContinuousCallback(_Condition(values), affect, direction=event.direction, terminate=end)
    if isinstance(event, DiscreteEvent):
        holds = terms.call("select", node(event.condition), terms.number(1), terms.number(0))
        return cb.DiscreteCallback(_Condition(program([holds]), lambda x: x[0] > 0.5), affect, terminate=end)
    if isinstance(event, PresetTimeEvent):
        return cb.PresetTimeCallback(_Times(program([model.parse(e) for e in event.times])), affect, terminate=end)
    if isinstance(event, PeriodicEvent):
        return cb.PeriodicCallback(_Times(program([model.parse(event.dt)]), lambda x: x[0]), affect, terminate=end)
    raise TypeError(f"unknown event {event!r}")


def _affect(model: SimplifiedSystem, event):
    """The state after the event, from that before it."""
    if not event.affect:
        return None
    terms = model.terms
    after = list(model.states)
    for symbol, value in event.affect.items():
        leaf = dict(model.changing).get(model.leaf(symbol), model.leaf(symbol))
        target = model.express(leaf)
        (state,) = unknown_leaves(terms, target) if len(terms.leaves(target)) == 1 else (None,)
        parts = None if state not in model.states else terms.linear(target, state)
        factor = None if parts is None else terms.value(parts[0])
        if factor is None or parts is None:
            raise ValueError(
                f"an event assigns to {symbol}, which is {model.show(target)}: assign to the states "
                f"{', '.join(model.names[:8])}"
            )
        new = terms.sub(model.current(model.parse(value)), parts[1])
        after[model.states.index(state)] = terms.mul([(new, 1), (terms.number(factor), -1)])
    return _Condition(generate(terms, after, model.places))
