"""Events of SBML, which happen when a trigger becomes true, as events of a system.

Owns: triggers as functions that cross zero or as known times, what happens at once together. Must not know: documents,
libsbml, how events are located.

The assignments of an event may make the trigger of another true, which then happens at once: its assignments are part
of those of the first, under that condition. Events of one trigger are one event.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sympy as sp
from sympy.logic.boolalg import Boolean

from .event_data import ContinuousEvent, PresetTimeEvent
from .symbols import D, Parameter, TimeDerivative, t

_ORDERED: Any = (sp.Gt, sp.Ge, sp.Lt, sp.Le)


class Change(NamedTuple):
    """An event: what it is called, its trigger, what that counts as before the start, its assignments.

    at_trigger : whether values are those of the instant of the trigger, also where other events happen at it
    """

    title: str
    trigger: Any
    was: bool
    affect: dict[Any, Any]
    priority: float | None = None
    at_trigger: bool = True


def events(changes: Sequence[Change], explicit: Mapping[Any, Any], start: Mapping[Any, Any]) -> list:
    """The events of a system.

    Parameters
    ----------
    changes : sequence of Change
    explicit : mapping
        Unknowns that are equal to an expression, by which triggers are followed through assignments.
    start : mapping
        Values at t = 0, as far as they are known.
    """
    order = sorted(changes, key=lambda x: -float("inf") if x.priority is None else -x.priority)
    return _Events(_merged(order), explicit, start).made()


def _merged(changes: Sequence[Change]) -> list[Change]:
    """The changes with those of one trigger as one; they are in the order in which they happen."""
    out: dict[Any, Change] = {}
    for change in changes:
        key = change.trigger, change.was
        if key not in out:
            out[key] = change
            continue
        before = out[key].affect
        own = change.affect
        if not change.at_trigger:
            own = {symbol: value.xreplace(before) for symbol, value in own.items()}
        out[key] = out[key]._replace(affect={**before, **own}, title=f"{out[key].title}, {change.title}")
    return [change for change in out.values() if change.affect]


class _Events:
    def __init__(self, changes: list[Change], explicit: Mapping[Any, Any], start: Mapping[Any, Any]):
        self.changes = changes
        self.explicit = dict(explicit)
        self.start = dict(start)
        self.variable = {symbol for change in changes for symbol in change.affect}
        self.triggers = [self._written_out(change.trigger) for change in changes]

    def made(self) -> list:
        at_start = [x for change, when in self._pairs() for x in self._at_start(change, when)]
        return at_start + [x for change, when in self._pairs() for x in self._later(change, when)]

    def _pairs(self):
        return zip(self.changes, self.triggers, strict=True)

    def _written_out(self, expr) -> Any:
        """The expression without unknowns that are equal to another expression."""
        while True:
            found = {x: self.explicit[x] for x in expr.free_symbols if x in self.explicit}
            if not found or expr.atoms(TimeDerivative):
                return expr
            expr = expr.xreplace(found)

    # ------------------------------------------------------------ when

    def _at_start(self, change: Change, when) -> list:
        """A trigger that is true at t = 0 but counts as false before, or becomes true there."""
        first = self._leaves_threshold(when) if change.was else when.subs(t, 0)
        if first == sp.false:
            return []
        affect = {x: _chosen(value, first, x) for x, value in self._after(change, {}, (change,)).items()}
        return [PresetTimeEvent(0, affect)]

    def _leaves_threshold(self, when) -> Any:
        """Whether x > a becomes true at t = 0, where x = a: that zero of x - a is no crossing."""
        if not isinstance(when, (sp.Gt, sp.Lt)) or self._time(when) is not None:
            return sp.false
        ahead = margin(when)
        value: Any = ahead.subs(t, 0)
        while value.free_symbols and not value.free_symbols.isdisjoint(self.start):
            value = value.xreplace({x: sp.sympify(self.start[x]) for x in value.free_symbols if x in self.start})
        if value != 0 or ahead.atoms(TimeDerivative):
            return sp.false
        there: Any = sp.Eq(ahead, 0)
        return sp.And(there, D(ahead) > 0)

    def _later(self, change: Change, when) -> list:
        """A trigger that becomes true later."""
        if when in (sp.true, sp.false):
            return []
        affect = self._after(change, {}, (change,))
        time = self._time(when)
        if time is not None:
            at_start = time.is_number and (time < 0 or (time == 0 and when.subs(t, 0) == sp.true))
            return [] if at_start else [PresetTimeEvent(time, affect)]
        if isinstance(when, sp.Eq):
            return [ContinuousEvent(when, affect)]
        return [ContinuousEvent(margin(change.trigger), affect, direction=1)]

    def _time(self, when) -> Any:
        """The time from which a relation holds, where that is known beforehand."""
        time, slope = switch(when, self.variable)
        return time if slope > 0 else None

    # ------------------------------------------------------------ what

    def _after(self, change: Change, now: Mapping[Any, Any], happened: tuple[Change, ...]) -> dict[Any, Any]:
        """The values after a change, and after what it makes happen, by those `now`; both by symbol."""
        if not now:
            values = dict(change.affect)
        else:
            values = {x: self._written_out(sp.sympify(e)).xreplace(now) for x, e in change.affect.items()}
        later = {**now, **values}
        for other, when in self._pairs():
            if any(other is x for x in happened) or when.free_symbols.isdisjoint(values) or when.atoms(TimeDerivative):
                continue
            becomes = sp.And(when.xreplace(later), sp.Not(when.xreplace(dict(now))))
            if becomes != sp.false:
                then = self._after(other, later, (*happened, other))
                later = {x: _chosen(value, becomes, later.get(x, x)) for x, value in then.items()}
        return later


def _chosen(value, condition, otherwise) -> Any:
    """The value where a condition holds."""
    if condition == sp.true or value == otherwise:
        return value
    return sp.Piecewise((value, condition), (otherwise, True), evaluate=False)


def switch(relation, variable) -> tuple[Any, Any]:
    """The time at which a relation begins to hold, with slope > 0, or ceases to; slope 0 where that is not known.

    `variable` are the symbols that may change, beside unknowns.
    """
    if not isinstance(relation, _ORDERED) or t not in relation.free_symbols:
        return None, 0
    ahead = margin(relation)
    slope = sp.diff(ahead, t)
    rest = sp.expand(ahead - slope * t)
    known = all(isinstance(x, Parameter) and x not in variable for x in rest.free_symbols)
    return (-rest / slope, slope) if slope.is_Number and slope != 0 and known else (None, 0)


def margin(condition) -> Any:
    """A function that is positive where a condition holds and negative where it does not."""
    if isinstance(condition, _ORDERED):
        return condition.gts - condition.lts
    if isinstance(condition, sp.And):
        return sp.Min(*map(margin, condition.args))
    if isinstance(condition, sp.Or):
        return sp.Max(*map(margin, condition.args))
    if isinstance(condition, sp.Not):
        return -margin(condition.args[0])
    if isinstance(condition, Boolean):  # (in)equality, of which nothing is known but whether it holds
        return sp.Piecewise((1, condition), (-1, True), evaluate=False)
    raise TypeError(f"{condition} is no condition")
