"""The static description of one call of the flow primitive, and where its operands are.

Owns: `Spec` (the problem's static part), `Call` (which T_k or A_k, on which operands). Must not know: rules, numerics.

Operands, in this order:
    r        u leaves, p leaves, t0, ts                       differentiable
    fixed    aux leaves, t1, reltol, abstol, dt0, dtmin, dtmax  not differentiated
    record   times, states, extent, code                      where `given_record`
    slots    for each x_i, its components in r that are not zero
    w        one cotangent for each linear result             where `want` is given (A_k)
Results: T_k: the saved u leaves, and of a solve with events their times (E,), the u leaves before, and those after;
T_0 also how the solve ended, which events there were, and its record where `emit_record`. A_k: the wanted components of
the gradient, and the return code and counts of the backward solve (1 + COUNTS,). The record of a solve with events is
their list.
"""

import functools
from dataclasses import dataclass
from typing import Any

from .events import EventSystem
from .field import Field
from .integrate.loop import Options, Settings
from .integrate.record import rows_for
from .sensealg import SensitivityAlgorithm

NONE, LANE, SHARED = 0, 1, 2  # a component of A_k's gradient: not wanted, one per lane, the sum over lanes
RECORD = 4  # arrays of a record
_OPTIONS = len(Options._fields)


@dataclass(frozen=True)
class Spec:
    """The static part of a problem; equal specs share compiled code."""

    field: Field
    settings: Settings
    sensealg: SensitivityAlgorithm
    throw: bool
    alg: Any
    names: tuple[str, ...]  # of the state's leaves, for messages
    initialise: str | None = None  # whether the algebraic equations at t0 are solved, "solve", or checked, "check"
    events: EventSystem | None = None
    width: int | None = None  # lanes in the loop at once, the others in a queue; all of them where None
    entries: tuple[str, ...] = ()  # names of the state's entries, where a model gives them
    progress: bool = False  # whether the solve itself, no derivative of it, reports how far it has come


@dataclass(frozen=True)
class Call:
    spec: Spec
    slots: tuple[tuple[bool, ...], ...] = ()
    want: tuple[int, ...] | None = None
    given_record: bool = False
    emit_record: bool = False
    rows: int | None = None  # of the record, where every step has to be in it; of steps' times, where there are events
    lanes: int | None = None
    mapped: tuple[bool, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Computed once: an eager call looks its compiled program up."""
        return hash(
            (self.spec, self.slots, self.want, self.given_record, self.emit_record, self.rows, self.lanes, self.mapped)
        )

    @property
    def order(self) -> int:
        return len(self.slots)

    @property
    def adjoint(self) -> bool:
        return self.want is not None

    @property
    def kinds(self) -> tuple[int, ...]:
        """What is wanted of each component of r; nothing where this is no adjoint."""
        return self.want or ()

    @property
    def wanted(self) -> list[int]:
        """The components of r whose gradient is wanted."""
        return [c for c, kind in enumerate(self.kinds) if kind != NONE]

    # ---- where operands are
    @property
    def n_u(self) -> int:
        return len(self.spec.field.state.shapes)

    @property
    def n_p(self) -> int:
        return self.spec.field.n_p

    @property
    def i_t0(self) -> int:
        return self.n_u + self.n_p

    @property
    def i_ts(self) -> int:
        return self.i_t0 + 1

    @property
    def n_r(self) -> int:
        return self.i_t0 + 2

    @property
    def n_fixed(self) -> int:
        """Operands before the record."""
        return self.i_t1 + 1 + _OPTIONS

    @property
    def i_t1(self) -> int:
        return self.n_r + self.spec.field.n_aux

    @property
    def n_record(self) -> int:
        return RECORD if self.given_record else 0

    @functools.cached_property
    def slot_ranges(self) -> tuple[range, ...]:
        out, start = [], self.n_fixed + self.n_record
        for mask in self.slots:
            out.append(range(start, start + sum(mask)))
            start += sum(mask)
        return tuple(out)

    @functools.cached_property
    def w_range(self) -> range:
        start = self.slot_ranges[-1].stop if self.slots else self.n_fixed + self.n_record
        return range(start, start + (self.n_values if self.adjoint else 0))

    def slot_components(self, number: int) -> list[int]:
        """The components of r that slot `number` perturbs, in the order of its operands."""
        return [c for c, used in enumerate(self.slots[number]) if used]

    # ---- lanes
    def is_mapped(self, i: int) -> bool:
        return self.lanes is not None and self.mapped[i]

    def lane_axis(self, i: int) -> int:
        """The axis that lanes have in operand i: second in the record's row buffers, else first."""
        start = self.n_fixed
        return 1 if self.given_record and start <= i < start + 2 else 0

    # ---- results
    @property
    def has_info(self) -> bool:
        """Whether the call integrates the primal problem, and so tells how that ended."""
        return not (self.order or self.adjoint or self.given_record)

    @property
    def reports(self) -> bool:
        return self.spec.progress and self.has_info

    @property
    def n_values(self) -> int:
        """Results of T_k that have derivatives."""
        return self.n_u if self.spec.events is None else 1 + 3 * self.n_u

    @property
    def row_size(self) -> int:
        """Entries of a row of the record, beside its times."""
        n = self.spec.field.state.size
        on_mesh = self.spec.sensealg.residual == "mesh" and self.spec.events is None
        return self.spec.settings.method.memory(n) if on_mesh else n

    @property
    def n_linear_results(self) -> int:
        """Results that have derivatives; they come first."""
        return len(self.wanted) if self.adjoint else self.n_values

    @property
    def n_info(self) -> int:
        """Results that say how the solve ended: code, counts, t, dt, u leaves; which events, and times of steps."""
        return 4 + self.n_u + (0 if self.spec.events is None else 2)

    def record_rows(self, m: int) -> int:
        """Rows of the record; the same for any number of lanes, so that `vmap` changes no shape but the lanes' axis."""
        if self.spec.events is not None:
            return self.spec.events.most
        if self.spec.width is not None:  # the number of steps only
            return 1
        most = self.rows or rows_for(self.spec.settings.max_steps, self.spec.field.state.size)
        return {"mesh": most, "saves": m + 1, "nothing": 0}[self.spec.sensealg.residual]

    def result_axes(self) -> list[int | None]:
        """The axis of the lanes in each result."""
        n = self.n_linear_results + (1 if self.adjoint else 0)
        n += self.n_info if self.has_info else 0
        record: list[int | None] = [1, 1, None, 0] if self.emit_record else []
        return [*[0] * n, *record]
