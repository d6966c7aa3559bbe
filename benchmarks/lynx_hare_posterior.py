"""The posterior of the predator-prey model of the lynx and hare pelts, by NumPy and SciPy alone: a reference.

Model and priors are those of B. Carpenter, Predator-Prey Population Dynamics: the Lotka-Volterra model in Stan (2018):

    log y_k(t) ~ normal(log z_k(t), sigma_k),   z' = (alpha - beta w) z,   w' = (delta z - gamma) w
    alpha, gamma ~ normal(1, 0.5),   beta, delta ~ normal(0.05, 0.05),   all positive
    z(0), w(0) ~ lognormal(log 10, 1),   sigma_k ~ lognormal(-1, 1)

Importance sampling: independent draws of the logarithms of all eight from a Student distribution (7 degrees of freedom)
around the mode, weighted by posterior over proposal, so that no chain has to converge; the moments of a first round
give the proposal of the second. Solutions: DOP853 at tolerances of 1e-10. Its result is what tests/test_friends.py and
notebooks/08_friends.py compare with, beside draws that others made with Stan. Not a timing, so not part of
`run_all.py`; some minutes.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import scipy
from scipy.integrate import solve_ivp
from scipy.optimize import minimize
from scipy.stats import qmc

RESULT = Path(__file__).parent / "results" / "lynx_hare_posterior.json"
NAMES = ("alpha", "beta", "gamma", "delta", "hares", "lynxes", "sigma of hares", "sigma of lynxes")
LANES = 512  # solved together
FREEDOM = 7
YEARS = np.arange(21.0)  # since 1900
# fmt: off
PELTS = np.array([  # thousands; for the source see odesens/__main__.py
    [30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1,
     40.3, 57.0, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7],
    [4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4,
     8.0, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6],
])
# fmt: on
START = np.log([0.55, 0.028, 0.80, 0.024, 33.9, 5.9, 0.25, 0.25])


def populations(theta):
    """Logarithms of the populations (2, 21, n) for logarithms theta (8, n) of the parameters."""
    alpha, beta, gamma, delta = np.exp(theta[:4])

    def field(t, u):
        hares, lynxes = np.exp(u.reshape(2, -1))
        return np.concatenate([alpha - beta * lynxes, delta * hares - gamma])

    sol = solve_ivp(field, (0, 20), theta[4:6].ravel(), method="DOP853", t_eval=YEARS, rtol=1e-10, atol=1e-10)
    if not sol.success:
        raise RuntimeError(sol.message)
    return sol.y.reshape(2, -1, YEARS.size).transpose(0, 2, 1)


def log_posterior(theta):
    """Log density (n,) of the logarithms theta (8, n), normalised likelihood and priors but for their truncation."""
    rates, starts, sigma = np.exp(theta[:4]), theta[4:6], theta[6:8]
    mean, spread = np.array([[1.0, 0.05, 1.0, 0.05], [0.5, 0.05, 0.5, 0.05]])[:, :, None]
    prior = normal(rates, mean, spread) + theta[:4]  # the densities of the logarithms
    prior = prior.sum(0) + normal(starts, math.log(10), 1).sum(0) + normal(sigma, -1, 1).sum(0)
    residual = np.log(PELTS)[:, :, None] - populations(theta)
    return prior + normal(residual, 0, np.exp(sigma)[:, None]).sum((0, 1))


def normal(x, mean, spread):
    return -0.5 * ((x - mean) / spread) ** 2 - np.log(spread) - 0.5 * math.log(2 * math.pi)


def importance(centre, factor, draws, seed):
    """Draws (8, n) from the Student distribution of that centre and scale factor (8, 8), and their log weights (n,)."""
    n = centre.size
    points = scipy.special.ndtri(qmc.Sobol(n + 1, rng=seed).random(draws).T)  # scrambled: unbiased, and more exact
    chi2 = scipy.stats.chi2.isf(scipy.special.ndtr(points[n]), FREEDOM)
    z = points[:n] * np.sqrt(FREEDOM / chi2)
    theta = centre[:, None] + factor @ z
    log_proposal = -0.5 * (FREEDOM + n) * np.log1p((z**2).sum(0) / FREEDOM)
    chunks = [log_posterior(theta[:, i : i + LANES]) for i in range(0, draws, LANES)]
    return theta, np.concatenate(chunks) - log_proposal


def moments(theta, log_weights):
    """Means, standard deviations and covariance of theta under the weights, and the effective number of draws."""
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    mean = theta @ weights
    centred = theta - mean[:, None]
    covariance = centred * weights @ centred.T
    return mean, np.sqrt(np.diag(covariance)), covariance, 1 / np.sum(weights**2), weights


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--log2-draws", type=int, default=17, help="of each of the eight scrambled sequences")
    parser.add_argument("--result", type=Path, default=RESULT)
    options = parser.parse_args()

    mode = minimize(lambda x: -log_posterior(x[:, None])[0], START, method="BFGS", options={"gtol": 1e-3}).x
    factor = 0.15 * np.eye(8)
    centre = mode
    for round in range(3):  # the proposal's moments settle
        theta, log_weights = importance(centre, factor, 2**13, round)
        centre, _, covariance, effective, _ = moments(theta, log_weights)
        factor = np.linalg.cholesky(covariance)
        print(f"round {round}: {effective:.0f} effective draws of {2**13}")

    runs = []
    for seed in range(8):
        theta, log_weights = importance(centre, factor, 2**options.log2_draws, 100 + seed)
        mean, sd, _, effective, weights = moments(np.exp(theta), log_weights)
        runs.append((mean, sd, effective, weights.max()))
        print(f"sequence {seed}: {effective:.0f} effective draws, largest weight {weights.max():.1e}", flush=True)
    means, sds = np.array([run[0] for run in runs]), np.array([run[1] for run in runs])
    result = {
        "source": "benchmarks/lynx_hare_posterior.py",
        "scipy": scipy.__version__,
        "numpy": np.__version__,
        "draws": len(runs) * 2**options.log2_draws,
        "effective_draws": sum(run[2] for run in runs),
        "names": NAMES,
        "mean": means.mean(0).tolist(),
        "mean_error": (means.std(0, ddof=1) / math.sqrt(len(runs))).tolist(),
        "sd": sds.mean(0).tolist(),
        "sd_error": (sds.std(0, ddof=1) / math.sqrt(len(runs))).tolist(),
    }
    for row in zip(NAMES, *(result[key] for key in ("mean", "mean_error", "sd", "sd_error")), strict=True):
        print("{:16s} mean {:.6f} +- {:.1e}   sd {:.6f} +- {:.1e}".format(*row))
    options.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
