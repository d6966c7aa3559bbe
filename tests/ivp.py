"""Stiff problems, differential-algebraic problems and a few long ones, with end values known from elsewhere.

Right-hand sides, starts and end values are those of the Test Set for IVP Solvers (Mazzia, Magherini, Bari; before, CWI
Amsterdam) unless a problem says otherwise. Every rate constant is an entry of p, so that derivatives can be asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import odesens as ode


@dataclass(frozen=True, eq=False)
class Problem:
    """M u' = f(t, u, p), u(t0) = u0, and what is known of u(t1).

    Parameters
    ----------
    name : of the problem
    f, u0, tspan, p, mass_matrix : as `ODEProblem` takes them; no mass matrix is the identity
    values : the end values of the components `which` (all of them by default)
    digits : how many significant digits of each of the values are known, counted from where two sources agree
    atol : absolute tolerance that suits the scale of the states where reltol is 1e-8; a number, or one for each state
    then : further (tspan, p), each entered with the state where the one before it ended; `values` belong to the last
    """

    name: str
    f: Callable
    u0: Any
    tspan: tuple[float, float]
    p: Any
    values: Any
    digits: int
    atol: Any = 1e-10
    mass_matrix: Any = None
    which: Any = None
    then: tuple = ()

    def __post_init__(self):
        _arrays(self, "u0", "p", "values", "atol")

    def pick(self, u):
        """The components of u that `values` are about."""
        return u if self.which is None else u[np.asarray(self.which)]

    def phases(self):
        """Every (tspan, p) in the order of time."""
        return ((self.tspan, self.p), *self.then)

    def ode(self, **options):
        """The problem as odesens takes it, of the first phase."""
        if self.mass_matrix is not None:
            options["mass_matrix"] = self.mass_matrix
        return ode.ODEProblem(self.f, self.u0, self.tspan, self.p, **options)

    def end(self, alg, **options):
        """The end state by `alg`, through every phase."""
        problem, u, options = self.ode(), self.u0, {"abstol": self.atol, **options}
        for tspan, p in self.phases():
            u = ode.solve(problem, alg, u0=u, p=p, tspan=tspan, saveat=tspan[1:], **options).u[-1]
        return u


@dataclass(frozen=True, eq=False)
class Gradient:
    """Derivatives of loss = sum(weights * u(saveat)), known by other means.

    Parameters
    ----------
    problem : its f, u0, p and tspan
    saveat, weights : the times, and a row of weights for each
    value : of the loss
    p, u0 : gradients with respect to p and u0, None where not known
    hessian : with respect to p
    digits : how many digits of each entry are known, of the gradients; the Hessian's where it has fewer
    """

    problem: Problem
    saveat: Any
    weights: Any
    value: float
    p: Any
    u0: Any = None
    hessian: Any = None
    digits: int = 10
    hessian_digits: int = 0

    def __post_init__(self):
        _arrays(self, "saveat", "weights", "p", "u0", "hessian")

    def loss(self, us):
        """The loss of the saved states."""
        return jnp.sum(self.weights * us)


def _arrays(record, *names):
    for name in names:
        if getattr(record, name) is not None:
            object.__setattr__(record, name, np.asarray(getattr(record, name), float))


# ---------------------------------------------------------------- HIRES: 8 equations of a plant's response to light


def hires(t, u, p):
    a, b, c, d, e, g, h, i, j, k, l, m = p
    y = u
    bound = k * y[5] * y[7]
    return jnp.stack(
        [
            -a * y[0] + b * y[1] + c * y[2] + d,
            a * y[0] - e * y[1],
            -g * y[2] + b * y[3] + h * y[4],
            c * y[1] + a * y[2] - i * y[3],
            -j * y[4] + b * y[5] + b * y[6],
            -bound + l * y[3] + a * y[4] - b * y[5] + l * y[6],
            bound - m * y[6],
            -bound + m * y[6],
        ]
    )


HIRES = Problem(
    "HIRES",
    hires,
    np.array([1.0, 0, 0, 0, 0, 0, 0, 0.0057]),
    (0.0, 321.8122),
    np.array([1.71, 0.43, 8.32, 0.0007, 8.75, 10.03, 0.035, 1.12, 1.745, 280.0, 0.69, 1.81]),
    [
        7.371312573325668e-4,
        1.442485726316185e-4,
        5.888729740967575e-5,
        1.175651343283149e-3,
        2.386356198831331e-3,
        6.238968252742796e-3,
        2.849998395185769e-3,
        2.850001604814231e-3,
    ],
    12,
    atol=1e-12,
)


# ---------------------------------------------------------------- Robertson


def robertson(t, u, p):
    r1, r2, r3 = p[0] * u[0], p[1] * u[1] * u[1], p[2] * u[1] * u[2]
    return jnp.stack([r3 - r1, r1 - r2 - r3, r2])


def robertson_dae(t, u, p):
    r1, r2, r3 = p[0] * u[0], p[1] * u[1] * u[1], p[2] * u[1] * u[2]
    return jnp.stack([r3 - r1, r1 - r2 - r3, u[0] + u[1] + u[2] - 1])


ROBERTSON_K = np.array([0.04, 3e7, 1e4])
ROBERTSON_U0 = np.array([1.0, 0.0, 0.0])
ROBERTSON_ATOL = np.array([1e-10, 1e-14, 1e-10])
ROBER = Problem(
    "ROBER",
    robertson,
    ROBERTSON_U0,
    (0.0, 1e11),
    ROBERTSON_K,
    [2.083340149701255e-8, 8.333360770334713e-14, 0.9999999791665050],
    12,
    atol=np.array([1e-16, 1e-22, 1e-10]),
)
# to shorter times: SciPy's Radau at 1e-12 and 1e-11, LSODA at 1e-12 and collocation of order 9 agree in 12 digits
ROBER_40 = Problem(
    "ROBER to 40",
    robertson,
    ROBERTSON_U0,
    (0.0, 40.0),
    ROBERTSON_K,
    [0.715827068719403, 9.18553476455777e-6, 0.28416374574583],
    12,
    atol=ROBERTSON_ATOL,
)
ROBER_1E4 = Problem(
    "ROBER to 1e4",
    robertson,
    ROBERTSON_U0,
    (0.0, 1e4),
    ROBERTSON_K,
    [0.107300428537804, 4.80016697257167e-7, 0.892699091445498],
    12,
    atol=np.array([1e-10, 1e-15, 1e-10]),
)


# ---------------------------------------------------------------- OREGO: the Oregonator


def orego(t, u, p):
    s, q, w = p
    x, y, z = u
    return jnp.stack([s * (y + x * (1 - q * x - y)), (z - (1 + x) * y) / s, w * (x - z)])


OREGO_P = np.array([77.27, 8.375e-6, 0.161])
OREGO = Problem(
    "OREGO",
    orego,
    np.array([1.0, 2.0, 3.0]),
    (0.0, 360.0),
    OREGO_P,
    [1.000814870318523, 1228.178521549917, 132.0554942846706],
    12,
    atol=1e-8,
)


# ---------------------------------------------------------------- VDPOL: Van der Pol


def vdpol(t, u, p):
    return jnp.stack([u[1], ((1 - u[0] * u[0]) * u[1] - u[0]) / p[0]])


VDPOL = Problem(
    "VDPOL",
    vdpol,
    np.array([2.0, 0.0]),
    (0.0, 2.0),
    np.array([1e-6]),
    [1.706167732170483, -0.8928097010247975],
    13,
    atol=1e-10,
)


# ---------------------------------------------------------------- E5: badly scaled pyrolysis


def e5(t, u, p):
    """In (ln y1, y2, y4): y2 = y3 + y4 is an invariant, and y1 would underflow."""
    a, b, c, m = p
    l, y2, y4 = u
    y1, y3 = jnp.exp(l), y2 - y4
    return jnp.stack([-a - b * y3, a * y1 - m * c * y2 * y3, b * y1 * y3 - c * y4])


# at t = 1e11: SciPy's Radau, BDF and LSODA agree. The figures published for t = 1e13 break the invariant at 1e-3
E5 = Problem(
    "E5",
    e5,
    np.array([np.log(1.76e-3), 0.0, 0.0]),
    (0.0, 1e11),
    np.array([7.89e-10, 1.1e7, 1.13e3, 1e6]),
    [-111.4997780682, 1.01925825681e-20],
    10,
    atol=np.array([1e-10, 1e-27, 1e-30]),
    which=[0, 1],
)


# ---------------------------------------------------------------- POLLU: 20 species of air pollution, 25 reactions


def pollu(t, u, p):
    y = u
    r = [
        p[0] * y[0],
        p[1] * y[1] * y[3],
        p[2] * y[4] * y[1],
        p[3] * y[6],
        p[4] * y[6],
        p[5] * y[6] * y[5],
        p[6] * y[8],
        p[7] * y[8] * y[5],
        p[8] * y[10] * y[1],
        p[9] * y[10] * y[0],
        p[10] * y[12],
        p[11] * y[9] * y[1],
        p[12] * y[13],
        p[13] * y[0] * y[5],
        p[14] * y[2],
        p[15] * y[3],
        p[16] * y[3],
        p[17] * y[15],
        p[18] * y[15],
        p[19] * y[16] * y[5],
        p[20] * y[18],
        p[21] * y[18],
        p[22] * y[0] * y[3],
        p[23] * y[18] * y[0],
        p[24] * y[19],
    ]
    return jnp.stack(
        [
            -r[0] - r[9] - r[13] - r[22] - r[23] + r[1] + r[2] + r[8] + r[10] + r[11] + r[21] + r[24],
            -r[1] - r[2] - r[8] - r[11] + r[0] + r[20],
            -r[14] + r[0] + r[16] + r[18] + r[21],
            -r[1] - r[15] - r[16] - r[22] + r[14],
            -r[2] + 2 * r[3] + r[5] + r[6] + r[12] + r[19],
            -r[5] - r[7] - r[13] - r[19] + r[2] + 2 * r[17],
            -r[3] - r[4] - r[5] + r[12],
            r[3] + r[4] + r[5] + r[6],
            -r[6] - r[7],
            -r[11] + r[6] + r[8],
            -r[8] - r[9] + r[7] + r[10],
            r[8],
            -r[10] + r[9],
            -r[12] + r[11],
            r[13],
            -r[17] - r[18] + r[15],
            -r[19],
            r[19],
            -r[20] - r[21] - r[23] + r[22] + r[24],
            -r[24] + r[23],
        ]
    )


POLLU = Problem(
    "POLLU",
    pollu,
    np.array([0, 0.2, 0, 0.04, 0, 0, 0.1, 0.3, 0.01, 0, 0, 0, 0, 0, 0, 0, 0.007, 0, 0, 0]),
    (0.0, 60.0),
    np.array(
        [
            [0.35, 26.6, 12300.0, 8.6e-4, 8.2e-4],
            [15000.0, 1.3e-4, 24000.0, 16500.0, 9000.0],
            [0.022, 12000.0, 1.88, 16300.0, 4.8e6],
            [3.5e-4, 0.0175, 1e8, 4.44e11, 1240.0],
            [2.1, 5.78, 0.0474, 1780.0, 3.12],
        ]
    ).ravel(),
    [
        0.05646255480022769,
        0.1342484130422339,
        4.139734331099427e-9,
        5.523140207484359e-3,
        2.018977262302196e-7,
        1.464541863493966e-7,
        0.07784249118997964,
        0.3245075353396018,
        7.494013383880406e-3,
        1.622293157301561e-8,
        1.135863833257075e-8,
        2.230505975721359e-3,
        2.087162882798630e-4,
        1.396921016840158e-5,
        8.964884856898295e-3,
        4.352846369330103e-18,
        6.899219696263405e-3,
        1.007803037365946e-4,
        1.772146513969984e-6,
        5.682943292316392e-5,
    ],
    13,
    # the sixteenth species lives at 1e-18, five others below 1e-6
    atol=np.where(np.arange(20) == 15, 1e-26, np.where(np.isin(np.arange(20), [2, 4, 5, 9, 10]), 1e-17, 1e-13)),
)


# ---------------------------------------------------------------- PLEIADES: seven bodies in a plane, not stiff


def pleiades(t, u, p):
    """States x1..x7, y1..y7 and their velocities; p are the masses."""
    z = u[:14].reshape(2, 7)
    d = z[:, None, :] - z[:, :, None]
    cube = (jnp.sum(d * d, axis=0) + jnp.eye(7)) ** 1.5
    return jnp.concatenate([u[14:], jnp.sum(p * d / cube, axis=2).reshape(14)])


PLEIADES = Problem(
    "PLEIADES",
    pleiades,
    np.array(
        [3, 3, -1, -3, 2, -2, 2, 3, -3, 2, 0, 0, -4, 4, 0, 0, 0, 0, 0, 1.75, -1.5, 0, 0, 0, -1.25, 1, 0, 0],
    ),
    (0.0, 3.0),
    np.arange(1.0, 8.0),
    [
        0.3706139143970502,
        3.237284092057233,
        -3.222559032418324,
        0.6597091455775310,
        0.3425581707156584,
        1.562172101400631,
        -0.7003092922212495,
        -3.943437585517392,
        -3.271380973972550,
        5.225081843456543,
        -2.590612434977470,
        1.198213693392275,
        -0.2429682344935824,
        1.091449240428980,
    ],
    10,
    atol=1e-8,
    which=range(14),
)


# ---------------------------------------------------------------- RINGMOD: the ring modulator


def ringmod(t, u, p):
    c, cs, cp, r, rp, lh, ls1, ls2, ls3, rg1, rg2, rg3, ri, rc, gamma, delta = p
    y = u
    low, high = 0.5 * jnp.sin(2e3 * jnp.pi * t), 2 * jnp.sin(2e4 * jnp.pi * t)
    volts = jnp.stack(
        [
            y[2] - y[4] - y[6] - high,
            -y[3] + y[5] - y[6] - high,
            y[3] + y[4] + y[6] + high,
            -y[2] - y[5] + y[6] + high,
        ]
    )
    q1, q2, q3, q4 = gamma * (jnp.exp(delta * volts) - 1)
    return jnp.stack(
        [
            (y[7] - 0.5 * y[9] + 0.5 * y[10] + y[13] - y[0] / r) / c,
            (y[8] - 0.5 * y[11] + 0.5 * y[12] + y[14] - y[1] / r) / c,
            (y[9] - q1 + q4) / cs,
            (-y[10] + q2 - q3) / cs,
            (y[11] + q1 - q3) / cs,
            (-y[12] - q2 + q4) / cs,
            (-y[6] / rp + q1 + q2 - q3 - q4) / cp,
            -y[0] / lh,
            -y[1] / lh,
            (0.5 * y[0] - y[2] - rg2 * y[9]) / ls2,
            (-0.5 * y[0] + y[3] - rg3 * y[10]) / ls3,
            (0.5 * y[1] - y[4] - rg2 * y[11]) / ls2,
            (-0.5 * y[1] + y[5] - rg3 * y[12]) / ls3,
            (-y[0] + low - (ri + rg1) * y[13]) / ls1,
            (-y[1] - (rc + rg1) * y[14]) / ls1,
        ]
    )


RINGMOD = Problem(
    "RINGMOD",
    ringmod,
    np.zeros(15),
    (0.0, 1e-3),
    np.array(
        [
            [1.6e-8, 2e-12, 1e-8, 25e3, 50.0, 4.45, 2e-3, 5e-4],
            [5e-4, 36.3, 17.3, 17.3, 50.0, 600.0, 40.67286402e-9, 17.7493332],
        ]
    ).ravel(),
    [
        -0.02339057358486745,
        -7.367485485540825e-3,
        0.2582956709291169,
        -0.4064465721283450,
        -0.4039455665149794,
        0.2607966765422943,
        0.1106761861269975,
        2.939904342435596e-7,
        -2.840029933642329e-8,
        7.267198267264553e-4,
        7.929487196960840e-4,
        -7.255283495698965e-4,
        -7.941401968526521e-4,
        7.088495416976114e-5,
        2.390059075236570e-5,
    ],
    9,
    atol=np.array([1e-9] * 7 + [1e-15] * 2 + [1e-12] * 6),
)


# ---------------------------------------------------------------- BEAM: an elastic beam, 80 equations


def beam(t, u, p):
    """Angles of 40 links, then their velocities; p[0] is the force at the free end, 1.5 until t = pi and 0 after it."""
    n = 40
    theta, w = u[:n], u[n:]
    d = theta[1:] - theta[:-1]
    s, c = jnp.sin(d), jnp.cos(d)
    ends = jnp.concatenate([-theta[:1], theta, theta[-1:]])
    v = n**4 * (ends[:-2] - 2 * theta + ends[2:])
    v = v + n**2 * p[0] * jnp.sin(t) ** 2 * (jnp.cos(theta) + jnp.sin(theta))
    zero = jnp.zeros(1, u.dtype)
    up, down = lambda x: jnp.concatenate([x, zero]), lambda x: jnp.concatenate([zero, x])
    diagonal = jnp.full(n, 2.0, u.dtype).at[0].set(1.0).at[-1].set(3.0)
    g = up(s * v[1:]) - down(s * v[:-1]) + w * w
    g = jax.lax.linalg.tridiagonal_solve(down(-c), diagonal, up(-c), g[:, None])[:, 0]
    acceleration = diagonal * v - up(c * v[1:]) - down(c * v[:-1]) + up(s * g[1:]) - down(s * g[:-1])
    return jnp.concatenate([w, acceleration])


# SciPy's Radau at 1e-12; the positions agree with the published figures in 12 digits, the velocities in 9
BEAM = Problem(
    "BEAM",
    beam,
    np.zeros(80),
    (0.0, np.pi),
    np.array([1.5]),
    [-5.792366591285e-3, -0.0911913465465, -0.14835954724630, -0.17672017610755],
    12,
    atol=1e-8,
    which=[0, 9, 19, 39],
    then=(((np.pi, 5.0), np.array([0.0])),),
)


# ---------------------------------------------------------------- MEDAKZO: antibodies in a tumour, 400 equations


def medakzo(t, u, p):
    """200 cells, two states each, side by side; p = (boundary value, rate, scale of the grid)."""
    phi, k, c = p
    z = jnp.arange(1, 201) / 200
    a, b = 2 * (z - 1) ** 3 / c**2, (z - 1) ** 4 / c**2
    x, v = u.reshape(200, 2).T
    left = jnp.concatenate([phi[None], x[:-1]])
    right = jnp.concatenate([x[1:], x[-1:]])
    r = k * x * v
    flow = b * (left - 2 * x + right) * 200**2 + a * (right - left) * 100
    return jnp.stack([flow - r, -r], axis=1).reshape(400)


# SciPy's Radau at 1e-12 and at 1e-10, LSODA at 1e-13; the published figures have 8 digits
MEDAKZO = Problem(
    "MEDAKZO",
    medakzo,
    np.tile([0.0, 1.0], 200),
    (0.0, 5.0),
    np.array([2.0, 100.0, 4.0]),
    [2.33994222296e-4, 3.57683596681e-4, 3.08594984064e-4, 1.17374129616e-4],
    10,
    atol=1e-10,
    which=[78, 132, 170, 198],
    then=(((5.0, 20.0), np.array([0.0, 100.0, 4.0])),),
)


# ---------------------------------------------------------------- CHEMAKZO: index 1, the sixth row algebraic


def chemakzo(t, u, p):
    k1, k2, k3, k4, equilibrium, kla, ks, pco2, henry = p
    y1, y2, y3, y4, y5, y6 = u
    root = jnp.sqrt(y2)
    r1, r2, r3 = k1 * y1**4 * root, k2 * y3 * y4, k2 / equilibrium * y1 * y5
    r4, r5 = k3 * y1 * y4 * y4, k4 * y6 * y6 * root
    return jnp.stack(
        [
            -2 * r1 + r2 - r3 - r4,
            -0.5 * r1 - r4 - 0.5 * r5 + kla * (pco2 / henry - y2),
            r1 - r2 + r3,
            -r2 + r3 - 2 * r4,
            r2 - r3 + r5,
            ks * y1 * y4 - y6,
        ]
    )


CHEMAKZO = Problem(
    "CHEMAKZO",
    chemakzo,
    np.array([0.444, 0.00123, 0.0, 0.007, 0.0, 115.83 * 0.444 * 0.007]),
    (0.0, 180.0),
    np.array([18.7, 0.58, 0.09, 0.42, 34.4, 3.3, 115.83, 0.9, 737.0]),
    [
        0.1150794920661702,
        1.203831471567715e-3,
        0.1611562887407974,
        3.656156421249283e-4,
        0.01708010885264404,
        4.873531310307455e-3,
    ],
    12,
    atol=1e-12,
    mass_matrix=np.diag([1.0, 1, 1, 1, 1, 0]),
)


# ---------------------------------------------------------------- TRANSAMP: index 1, M singular and not diagonal


def transamp(t, u, p):
    battery, thermal, alpha, beta, r0, r = p
    y = u
    signal = 0.1 * jnp.sin(200 * jnp.pi * t)
    a = beta * (jnp.exp((y[1] - y[2]) / thermal) - 1)
    b = beta * (jnp.exp((y[4] - y[5]) / thermal) - 1)
    return jnp.stack(
        [
            (y[0] - signal) / r0,
            (2 * y[1] - battery) / r - (alpha - 1) * a,
            y[2] / r - a,
            (y[3] - battery) / r + alpha * a,
            (2 * y[4] - battery) / r - (alpha - 1) * b,
            y[5] / r - b,
            (y[6] - battery) / r + alpha * b,
            y[7] / r,
        ]
    )


def _transamp_mass():
    m = np.zeros((8, 8))
    for capacity, *nodes in ((1e-6, 0, 1), (2e-6, 2), (3e-6, 3, 4), (4e-6, 5), (5e-6, 6, 7)):
        for i in nodes:
            for j in nodes:
                m[i, j] = -capacity if i == j else capacity
    return m


TRANSAMP = Problem(
    "TRANSAMP",
    transamp,
    np.array([0.0, 3, 3, 6, 3, 3, 6, 0]),
    (0.0, 0.2),
    np.array([6.0, 0.026, 0.99, 1e-6, 1000.0, 9000.0]),
    [
        -5.562145012262709e-3,
        3.006522471903042,
        2.849958788608128,
        2.926422536206241,
        2.704617865010554,
        2.761837778393145,
        4.770927631616772,
        1.236995868091548,
    ],
    12,
    atol=1e-8,
    mass_matrix=_transamp_mass(),
)


# ---------------------------------------------------------------- Robertson and cubic constraints as DAEs


def cubic(t, u, p):
    """x' = a x + y + z, 0 = y^3 + y - b x, 0 = z^3 + z - c y."""
    a, b, c = p
    x, y, z = u
    return jnp.stack([a * x + y + z, y**3 + y - b * x, z**3 + z - c * y])


# closed by differentiating the constraints, mpmath to 30 digits; the start is consistent to rounding
CUBIC = Problem(
    "cubic constraints",
    cubic,
    np.array([1.0, 1.0, 0.8612240997395736]),
    (0.0, 0.1),
    np.array([-0.5, 2.0, 1.5]),
    [1.1375291200803808, 1.0654787731733842, 0.8909616118026227],
    16,
    atol=1e-10,
    mass_matrix=np.diag([1.0, 0, 0]),
)

# from an equivalent system of two equations: that of ROBER to 40
ROBER_DAE = Problem(
    "ROBER as a DAE",
    robertson_dae,
    ROBERTSON_U0,
    (0.0, 40.0),
    ROBERTSON_K,
    ROBER_40.values,
    12,
    atol=ROBERTSON_ATOL,
    mass_matrix=np.diag([1.0, 1, 0]),
)


def root(t, u, p):
    """x' = -z, 0 = z^2 - p x, solved by x = (sqrt(x0) - sqrt(p) t / 2)^2; the given z is a guess."""
    x, z = u
    return jnp.stack([-z, z * z - p[0] * x])


ROOT = Problem(
    "root",
    root,
    np.array([4.0, 1.0]),
    (0.0, 1.5),
    np.array([0.5]),
    [2.1599296564403574, 1.039213562373095],
    16,
    atol=1e-10,
    mass_matrix=np.diag([1.0, 0]),
)


# ---------------------------------------------------------------- the Brusselator on a line


def brusselator_field(t, u, p):
    """N cells, the first species of all cells, then the second; (1, 3) at both ends (Hairer, Wanner II, IV.10)."""
    a, b, alpha = p
    x, y = u.reshape(2, -1)
    n = x.size
    ends = jnp.array([1.0, 3.0], u.dtype)[:, None]
    padded = jnp.concatenate([ends, u.reshape(2, n), ends], axis=1)
    spread = alpha * (n + 1) ** 2 * (padded[:, :-2] - 2 * padded[:, 1:-1] + padded[:, 2:])
    turned = x * x * y
    return (jnp.stack([a + turned - (b + 1) * x, b * x - turned]) + spread).reshape(2 * n)


def brusselator(n, values=None, digits=0, **options):
    """The problem with n cells, to t = 10; 2n states."""
    x = np.arange(1, n + 1) / (n + 1)
    u0 = np.concatenate([1 + np.sin(2 * np.pi * x), np.full(n, 3.0)])
    p = np.array([1.0, 3.0, 0.02])
    return Problem(f"BRUSSELATOR of {n}", brusselator_field, u0, (0.0, 10.0), p, values, digits, **options)


# SciPy's Radau at 1e-12 and 1e-10 with the variational equations: 12 digits
BRUSSELATOR = brusselator(
    20,
    [0.877653009728, 0.430660675748, 3.15470390906, 3.69088755125],
    12,
    which=[0, 9, 20, 30],
)


# ---------------------------------------------------------------- gradients

# Made by SciPy on the variational equations in y, dy/dlog p and dy/du0 (for the Hessians, d2y/dlog p2), built by
# `jax.jvp` of f and solved as one system with its exact Jacobian; the absolute tolerance of each block is 1e-3 rtol
# times the scale of the state. A second way, collocation of order 9 (Radau IIA of five stages, in JAX) on the steps of
# SciPy's Radau and differentiated through its Newton iterations, gives the same digits. Both know nothing of odesens.
# `digits` are those in which all agree, LSODA and BDF aside where they are named.

_ROBER_WEIGHTS = [1.0, 2e4, 0.5]
# Radau at 1e-12 and 1e-11 agree in 14 digits (Hessian 13), with LSODA at 1e-12 in 12 (11), BDF at 1e-11 in 11 (10),
# collocation in 13 (12)
ROBER_40_GRADIENT = Gradient(
    ROBER_40,
    [40.0],
    [_ROBER_WEIGHTS],
    1.04161963688347,
    [-1.205563091983, -3.420239660178e-09, 2.151137618636e-06],
    [0.9605238232645, 0.8796998624531, 0.8797081296217],
    [
        [1.098462911542, -3.217910646282e-08, 0.0001012533975182],
        [-3.217910646282e-08, 1.34584060586e-16, 1.041444673781e-13],
        [0.0001012533975182, 1.041444673781e-13, -3.685501624225e-10],
    ],
    digits=12,
    hessian_digits=12,
)
# Radau at 1e-12 and 1e-11 agree in 12 digits, with LSODA in 11, collocation in 12
ROBER_40_SAVES = Gradient(
    ROBER_40,
    [0.4, 4.0, 40.0],
    [_ROBER_WEIGHTS] * 3,
    4.11231111205779,
    [9.067584089566, -1.977975085907e-08, -1.224290703143e-05],
    [3.396489515972, -1.159754893796, -1.159288853275],
    digits=12,
)
# Radau at 1e-12 and 1e-11 agree in 13 digits, with LSODA in 11, collocation in 13
ROBER_1E4_GRADIENT = Gradient(
    ROBER_1E4,
    [1e4],
    [_ROBER_WEIGHTS],
    0.563250308205697,
    [-1.823227986113, -1.368385480550e-09, 7.250290131361e-06],
    [0.5947016451028, 0.5945979506464, 0.5945979612529],
    [
        [81.72987463372, 2.562836236349e-08, -0.0001433384442511],
        [2.562836236349e-08, 6.646876067283e-17, -1.022775079642e-13],
        [-0.0001433384442511, -1.022775079642e-13, -1.525089174571e-10],
    ],
    digits=13,
    hessian_digits=12,
)
# Radau at 1e-12 and 1e-11, collocation: 12 digits
HIRES_GRADIENT = Gradient(
    HIRES,
    [321.8122],
    [np.arange(1.0, 9.0)],
    0.0980204877833,
    [
        57.57385906483,
        10.50602659716,
        1.214573182988,
        639.6644653321,
        -0.7467710832356,
        -0.4678865435861,
        57.15678739486,
        -6.260946643968,
        -57.12108091452,
        -0.0003839940137055,
        9.694354545517,
        -3.380499623511,
    ],
    [
        1.87302756385,
        1.86875287641,
        1.872566923755,
        1.864542081659,
        1.852372614553,
        1.782292226642,
        -407.2907850856,
        -408.8228992345,
    ],
    digits=12,
)
# Radau at 1e-12 and 1e-10 agree in 11.9 to 14 digits, collocation in 11.5 or more
POLLU_GRADIENT = Gradient(
    POLLU,
    [60.0],
    [1 / np.array(POLLU.values)],
    20.0,
    [
        12.86621478422,
        -0.1318427196941,
        -8.128937450234e-05,
        9219.079322041,
        -484.8458101468,
        2.642224510993e-05,
        1298.712178608,
        0.0001746245471184,
        -9.127751175154e-05,
        5.623068718821e-05,
        -3.340101283925,
        -8.333345271288e-05,
        -0.5333746582851,
        -0.0004035464239548,
        -2.083332609127e-07,
        2857.532466804,
        0.2779535394287,
        -1.861036674935e-12,
        -2.251833099848e-12,
        0.0007988855591472,
        -0.2473454635977,
        -0.2349746701656,
        41.44315828351,
        0.0004945776128726,
        -0.2807347136617,
    ],
    digits=11,
)
VDPOL_1E3 = Problem(
    "VDPOL of 1e-3",
    vdpol,
    np.array([2.0, 0.0]),
    (0.0, 2.0),
    np.array([1e-3]),
    [1.7632345402034, -0.835688681677],
    12,
    atol=1e-10,
)
# Radau at 1e-12 and 1e-11 agree in 10.8 digits, collocation in 9.5; LSODA at 1e-12 has 7.6
VDPOL_GRADIENT = Gradient(
    VDPOL_1E3,
    [2.0],
    [[1.0, 1.0]],
    0.92754585852575,
    [70.5464946886],
    [2.40889035606, 0.000803052703252],
    digits=9,
)
OREGO_30 = Problem(
    "OREGO to 30",
    orego,
    np.array([1.0, 2.0, 3.0]),
    (0.0, 30.0),
    OREGO_P,
    [1.0006614671805, 1512.77893734824, 10358.5431276724],
    13,
    atol=1e-8,
)
# Radau at 1e-11 and 1e-10 agree in 10.8 digits, collocation in 10 or more; LSODA at 1e-12 in 7 to 12
OREGO_GRADIENT = Gradient(
    OREGO_30,
    [30.0],
    [[1.0, 1e-3, 1e-4]],
    3.549294717296,
    [-0.000376741720097, -303559.006488140, -12.1526906889237],
    [-0.0002115902898096, 1.36370499328933, 0.1177393822849],
    digits=10,
)
# Radau at 1e-12 and 1e-11 agree in 12.6 digits or more, with LSODA in 11 to 13; from the five equations that are left
# when the sixth state is eliminated, collocation in 12.5 from the six
CHEMAKZO_GRADIENT = Gradient(
    CHEMAKZO,
    [180.0],
    [np.ones(6)],
    0.299758868083612,
    [
        -0.001778729200401,
        -0.01189279299706,
        -0.002005926999846,
        0.03581177118924,
        -0.0002044160400045,
        0.0002086571891114,
        0.0003017820867588,
        -0.008034341803654,
        9.811272216132e-06,
    ],
    [0.4648189299801, -0.01723350609216, 0.7955344924441, 4.924498571745, 1.605454221655, 0],
    digits=12,
)
# mpmath at 45 digits, central differences of 10^-10; the start given to the second and third state is a guess
CUBIC_GRADIENT = Gradient(
    CUBIC,
    [0.0, 0.03, 0.07, 0.1],
    [[0.0, 0.5, -1.0], [0.0, 1.0, -2.0], [0.0, 0.0, 3.0], [1.0, 1.0, 1.0]],
    4.65911867261938,
    [0.226182758283612, 0.826123052175076, 0.389144485230296],
    [2.38445258319829, 0.0, 0.0],
    digits=15,
)
CUBIC_END = Gradient(
    CUBIC,
    [0.1],
    [[1.0, 1.0, 1.0]],
    3.09396950505639,
    [0.178440547900155, 0.434445277626405, 0.367314262886624],
    [1.68749369306698, 0.0, 0.0],
    digits=15,
)
# as ROBER_40_SAVES; in u0 the third state is 1 less the others: the first two entries less the third
ROBER_DAE_SAVES = Gradient(
    ROBER_DAE,
    ROBER_40_SAVES.saveat,
    ROBER_40_SAVES.weights,
    ROBER_40_SAVES.value,
    ROBER_40_SAVES.p,
    [4.555778369247, -4.66040521e-4, 0.0],
    digits=12,
)
# closed form
ROOT_GRADIENT = Gradient(
    ROOT,
    [0.0, 1.5],
    [[0.0, 1.0], [1.0, 1.0]],
    4.6133567811865475,
    [0.51960678118654752],
    [1.0883883476483184, 0.0],
    digits=16,
)
# Radau at 1e-12 and 1e-10: 13 digits
BRUSSELATOR_GRADIENT = Gradient(
    BRUSSELATOR,
    [10.0],
    [np.ones(40)],
    82.0598807952352,
    [87.6333448797685, 2.62613490481103, -215.180813786746],
    digits=12,
)
