"""`python -m odesens`: the main job, a predator-prey model fitted to the lynx and hare pelts of 1900 to 1920.

Owns: the data, the fit by gradients through `solve`, its printed report and picture. Must not know: solver internals.

Data: numbers of pelts, in thousands, 1900 to 1920 (D. R. MacLulich, Fluctuations in the numbers of the varying hare,
1937; C. Elton and M. Nicholson, The ten-year cycle in numbers of the lynx in Canada, J. Animal Ecology 11, 1942; as
tabulated by J. Howard, Modeling Basics, 2009). Model: Lotka-Volterra with log-normal errors.
"""

import argparse
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import odesens as ode

YEARS = np.arange(1900.0, 1921.0)
# fmt: off
HARE = np.array([30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1,
                 40.3, 57.0, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7])
LYNX = np.array([4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4,
                 8.0, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6])
# fmt: on
NAMES = (
    "birth of hares",
    "predation",
    "death of lynxes",
    "birth of lynxes",
    "hares 1900",
    "lynxes 1900",
    "spread of errors",
)
UNITS = ("1/year", "1/(year k)", "1/year", "1/(year k)", "thousands", "thousands", "of the logarithm")
START = np.log([0.5, 0.02, 0.9, 0.03, 30.0, 4.0, 0.3])


def predator_prey(t, u, p):
    """hare' = p0 hare - p1 hare lynx, lynx' = -p2 lynx + p3 hare lynx, in logarithms of the populations."""
    hare, lynx = jnp.exp(u)
    return jnp.stack([p[0] - p[1] * lynx, -p[2] + p[3] * hare])


PROBLEM = ode.ODEProblem(predator_prey, np.zeros(2), (1900.0, 1920.0), reltol=1e-8, abstol=1e-8)


def populations(theta, years=YEARS):
    """Logarithms of the hare and lynx populations (m, 2) at the given years, for logarithms theta of the parameters."""
    sol = ode.solve(PROBLEM, ode.Tsit5(), u0=theta[4:6], p=jnp.exp(theta[:4]), saveat=years, throw=False)
    return sol.u


def negative_log_likelihood(theta):
    """Log-normal errors with one spread: sum of r^2 / (2 s^2) + log s over the residuals r of the logarithms."""
    residual = populations(theta) - jnp.log(jnp.stack([HARE, LYNX], axis=1))
    return jnp.sum(residual**2) / (2 * jnp.exp(2 * theta[6])) + residual.size * theta[6]


def fit(progress=print):
    """The maximum likelihood estimate, its standard errors (from the Hessian), and the minimum."""
    value_and_grad = jax.jit(jax.value_and_grad(negative_log_likelihood))
    count = 0

    def objective(theta):
        nonlocal count
        count += 1
        value, gradient = value_and_grad(theta)
        progress(
            f"  gradient {count:3d}   -log likelihood {float(value):10.4f}   |gradient| {np.linalg.norm(gradient):.2e}"
        )
        return float(value), np.asarray(gradient)

    result = minimize(objective, START, jac=True, method="BFGS", options={"gtol": 1e-4})
    hessian = np.asarray(jax.jit(jax.hessian(negative_log_likelihood))(result.x))
    errors = np.sqrt(np.diag(np.linalg.inv(hessian)))
    return result.x, errors, float(result.fun), count


def plot(theta, path: Path) -> bool:
    """Draw data and fit into `path`; False where matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        return False
    years = np.linspace(YEARS[0], YEARS[-1], 401)
    fitted = np.exp(populations(theta, years))
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for data, curve, colour, name in (
        (HARE, fitted[:, 0], "tab:blue", "hare"),
        (LYNX, fitted[:, 1], "tab:red", "lynx"),
    ):
        axes.plot(years, curve, color=colour, label=f"{name}, fit")
        axes.plot(YEARS, data, "o", color=colour, label=f"{name}, pelts")
    axes.set(xlabel="year", ylabel="pelts, thousands", title="Hudson's Bay Company, 1900 to 1920")
    axes.set_xticks(YEARS[::5])
    axes.legend(ncols=2)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m odesens", description=__doc__.split("\n")[0])
    parser.add_argument("--plot", type=Path, default=Path("lynx_hare.png"), help="where the picture goes")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    start = time.perf_counter()
    print("Lotka-Volterra, fitted to the lynx and hare pelts of 1900 to 1920 by gradients through the solver")
    tty = sys.stdout.isatty()
    progress = lambda line: print(f"\r{line}" if tty else line, end="" if tty else "\n", flush=True)
    theta, errors, value, count = fit(progress)
    print("\n" if tty else "", end="")
    print(f"\n{'parameter':18s} {'estimate':>10s} {'std. error':>11s}   unit")
    for name, estimate, error, unit in zip(NAMES, np.exp(theta), errors, UNITS, strict=True):
        print(f"{name:18s} {estimate:10.4f} {estimate * error:11.4f}   {unit}")
    print(f"\n-log likelihood {value:.6f} after {count} gradients, {time.perf_counter() - start:.1f} s")
    if plot(theta, options.plot):
        print(f"picture: {options.plot}")
    else:
        print("no picture: matplotlib is not installed (pip install 'odesens[plot]')")
    return 0


if __name__ == "__main__":
    sys.exit(main())
