"""What events cost: ten of them in a solve beside the same solve without, and a terminating event beside diffrax.

    python benchmarks/events.py [--flag] [--quick] [--seconds 1] [--only ..]

Ten events: Lotka-Volterra on (0, 32), tolerance 1e-6, 101 saves; a crossing of prey = 2 upwards at which the state is
multiplied by 1 + 1e-9 (so that the solution, and the work between events, stay the same), known times at which the same
happens, and a condition that is never met. Ratio = median time by that of the solve without events, one interleaved
run; the same for the gradient in four parameters.

The end: a projectile with drag that stops where its height is zero; its time and range, and their gradient in the drag
coefficient. Peer: diffrax's `Event` with a Newton root finder. Errors against 15 digits by mpmath (extrapolated Taylor
steps, Newton's method on the height; derivatives by differences in 46 digits).
"""

import harness
import jax
import jax.numpy as jnp
import numpy as np
from gradient_lotka_volterra import U0, P, field

import odesens as ode

T1 = 32.0
TS = np.linspace(0, T1, 101)
TOLERANCES = [1e-4, 1e-6, 1e-8, 1e-10]
ERRORS = {"solve": [1e-5, 1e-7, 1e-9], "gradient": [1e-4, 1e-6, 1e-8]}
GRAVITY, DRAG = 9.80665, 1.225 * 0.005 / 2
KNOWN = {
    "solve": np.array([5.2499983990246532, 94.809778815128006]),
    "gradient": np.array([0.30046200899721033 - 12.098239005200361]),
}


def kick(t, u, p):
    return u * (1 + 1e-9)


CALLBACKS = {
    "no events": None,
    "ten crossings": ode.ContinuousCallback(lambda t, u, p: u[0] - 2.0, kick, direction=1),
    "ten known times": ode.PresetTimeCallback(np.arange(1, 11) * 2.9, kick),
    "a condition never met": ode.ContinuousCallback(lambda t, u, p: u[0] + 1.0, kick),
}


def ten_events(options) -> dict:
    """Seconds of solve and gradient with each callback, and how many events there were."""
    prob = ode.ODEProblem(field, U0, (0.0, T1), P, saveat=TS, reltol=1e-6, abstol=1e-6, max_events=16)
    ready, counts, p = {}, {}, jnp.asarray(P)
    for name, callback in CALLBACKS.items():
        solve = lambda p, callback=callback: ode.solve(prob, ode.Tsit5(), p=p, callback=callback)
        sol = solve(p)
        counts[name] = 0 if sol.events is None else int(sol.events.count)
        ready[name, "solve"] = harness.call(lambda p, solve=solve: solve(p).u, p)
        ready[name, "gradient"] = harness.call(jax.grad(lambda p, solve=solve: jnp.sum(solve(p).u)), p)
    times = harness.interleaved(ready, options.seconds)
    return {name: [counts[name], times[name, "solve"], times[name, "gradient"]] for name in CALLBACKS}


def flight(t, u, drag):
    _, _, speed, angle = u
    c = DRAG * drag
    return jnp.stack(
        [
            speed * jnp.cos(angle),
            speed * jnp.sin(angle),
            -c * speed**2 - GRAVITY * jnp.sin(angle),
            -GRAVITY * jnp.cos(angle) / speed,
        ]
    )


START = np.array([0.0, 100.0, 20.0, 0.3])


def by_odesens(tol, drag):
    ground = ode.ContinuousCallback(lambda t, u, p: u[1], direction=-1, terminate=True)
    prob = ode.ODEProblem(flight, START, (0.0, 10.0), drag, callback=ground, max_events=1)
    events = ode.solve(prob, ode.Tsit5(), saveat=np.array([10.0]), reltol=tol, abstol=tol).events
    return jnp.stack([events.t[0], events.after[0, 0]]), 0


def by_diffrax(tol, drag):
    import diffrax as dx
    import optimistix as optx

    root = optx.Newton(1e-12, 1e-12)
    event = dx.Event(lambda t, y, args, **kwargs: y[1], root, direction=False)
    steps = dx.PIDController(rtol=tol, atol=tol)
    term = dx.ODETerm(flight)
    more = {"stepsize_controller": steps, "event": event, "saveat": dx.SaveAt(t1=True)}
    sol = dx.diffeqsolve(term, dx.Tsit5(), 0.0, 10.0, None, jnp.asarray(START), drag, **more)
    return jnp.stack([sol.ts[0], sol.ys[0, 0]]), 0


PEERS = {
    "odesens Tsit5": lambda: harness.by_tolerance(by_odesens, 0.3),
    "diffrax Tsit5": lambda: harness.by_tolerance(by_diffrax, 0.3),
}


def main():
    options = harness.arguments(__doc__)
    rows = ten_events(options)
    base = rows["no events"]
    heads = ["ten events", "events", "solve", "ratio", "gradient", "ratio"]
    lines = [
        [name, n, harness.duration(s), f"{s / base[1]:.2f}", harness.duration(g), f"{g / base[2]:.2f}"]
        for name, (n, s, g) in rows.items()
    ]
    text = harness.markdown(heads, lines)
    tolerances = TOLERANCES[:1] if options.quick else TOLERANCES
    peers = {name: made for name, make in PEERS.items() if (made := harness.attempt(name, make)) is not None}
    points = harness.work_precision(peers, KNOWN, tolerances, options)
    text += "\n\n" + harness.table(points, ERRORS, "diffrax Tsit5")
    content = {"ten events": rows, "columns": harness.columns(KNOWN), "points": points}
    harness.finish("events", options, content, text)


if __name__ == "__main__":
    main()
