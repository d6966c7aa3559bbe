"""The main job: the fit of the lynx-hare pelts, against an optimum found without odesens."""

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from odesens import __main__ as job


def scipy_objective(theta):
    """The same likelihood with SciPy's solver."""
    p = np.exp(theta[:4])
    f = lambda t, u: [p[0] - p[1] * np.exp(u[1]), -p[2] + p[3] * np.exp(u[0])]
    u = solve_ivp(f, (1900, 1920), theta[4:6], method="DOP853", t_eval=job.YEARS, rtol=1e-11, atol=1e-11).y.T
    r = u - np.log(np.stack([job.HARE, job.LYNX], axis=1))
    return np.sum(r**2) / (2 * np.exp(2 * theta[6])) + r.size * theta[6]


@pytest.fixture(scope="module")
def fitted():
    lines = []
    return *job.fit(lines.append), lines


def test_the_fit_is_an_optimum_of_the_likelihood_by_scipy(fitted):
    theta, _, value, count, lines = fitted
    assert value == pytest.approx(scipy_objective(theta), abs=1e-6)
    assert count < 60 and len(lines) == count
    for i in range(theta.size):
        for step in (-0.01, 0.01):
            moved = theta.copy()
            moved[i] += step
            assert scipy_objective(moved) > value


def test_standard_errors_come_from_the_right_hessian(fitted):
    theta, errors = fitted[:2]
    h, eye = 1e-3, np.eye(theta.size)
    f = scipy_objective
    differences = [(f(theta + h * e) - 2 * f(theta) + f(theta - h * e)) / h**2 for e in eye]
    hessian = np.asarray(jax.hessian(job.negative_log_likelihood)(theta))
    np.testing.assert_allclose(np.diag(hessian), differences, rtol=1e-3)
    np.testing.assert_allclose(errors, np.sqrt(np.diag(np.linalg.inv(hessian))), rtol=1e-6)


def test_estimates_are_those_known_for_these_data(fitted):
    """Carpenter, Predator-prey population dynamics (2018), posterior means: 0.55, 0.028, 0.80, 0.024, within errors."""
    theta, errors = fitted[:2]
    known = np.log([0.55, 0.028, 0.80, 0.024, 33.9, 5.9, 0.25])
    assert np.all(np.abs(theta - known) < 2 * errors)


def test_the_report_and_the_picture(fitted, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(job, "fit", lambda progress: fitted[:4])
    path = tmp_path / "fit.png"
    assert job.main(["--plot", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "birth of hares" in printed and "-log likelihood -42.739938" in printed
    assert path.exists() or "matplotlib is not installed" in printed
