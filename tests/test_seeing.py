"""Pictures, tables, files and texts of solutions: what is in them."""

from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

TIMES = np.linspace(0.0, 1.0, 11)


def decay(t, u, p):
    return jax.tree.map(lambda x: -p * x, u)


STATE = {"prey": jnp.array([1.0, 2.0]), "pred": jnp.array(3.0)}
PROB = ode.ODEProblem(decay, STATE, (0.0, 1.0), 2.0, saveat=TIMES)


@pytest.fixture(scope="module")
def sol():
    return ode.solve(PROB, ode.Tsit5())


@pytest.fixture(scope="module")
def many():
    """Three trajectories, of which the second fails."""
    rates = jnp.array([1.0, jnp.nan, 3.0])
    return ode.solve(ode.EnsembleProblem(PROB, p=rates), ode.Tsit5(), trajectories=3, throw=False)


@pytest.fixture(scope="module")
def bouncing():
    """Thrown at 1 from height 0, falling with 2: down at t = 1 and, half as fast, again at t = 1.5."""
    bounce = ode.ContinuousCallback(lambda t, u, p: u[0], lambda t, u, p: jnp.stack([0.0, -u[1] / 2]), direction=-1)
    prob = ode.ODEProblem(lambda t, u, p: jnp.stack([u[1], -2.0]), [0.0, 1.0], (0.0, 1.6), callback=bounce)
    return ode.solve(prob, ode.Tsit5(), saveat=np.array([0.0, 0.5, 1.2, 1.6]))


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


# ---------------------------------------------------------------- pictures


def labels(ax):
    return [line.get_label() for line in ax.lines]


def test_series(plt, sol):
    ax = sol.plot()
    assert labels(ax) == ["pred", "prey[0]", "prey[1]"]
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), sol.t)
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), sol.u["prey"][:, 0])
    assert sol.plot(vars=[2, "pred"], ax=ax) is ax
    assert labels(ax)[3:] == ["prey[1]", "pred"]
    assert labels(sol.plot(vars="pred")) == ["pred"]


def test_phase_planes(plt, sol):
    ax = sol.plot(vars=("prey[0]", "pred"))
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), sol.u["prey"][:, 0])
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), sol.u["pred"])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("prey[0]", "pred")
    assert sol.plot(vars=(0, 1, 2)).get_zlabel() == "prey[1]"
    assert len(sol.plot(vars=[(0, 1), (0, 2)]).lines) == 4  # curves and where they start


def test_what_cannot_be_drawn(plt, sol, many):
    with pytest.raises(IndexError, match="component 3: this state has 3"):
        sol.plot(vars=[3])
    with pytest.raises(KeyError, match=r"no component 'fox'.*pred, prey"):
        sol.plot(vars="fox")
    with pytest.raises(ValueError, match="two or three components"):
        sol.plot(vars=(0, 1, 2, 0))
    with pytest.raises(TypeError, match="mixes"):
        sol.plot(vars=[(0, 1), 2])
    with pytest.raises(TypeError, match="one trajectory"):
        many.plot(vars=(0, 1))
    with pytest.raises(ValueError, match="3d"):
        sol.plot(vars=(0, 1, 2), ax=plt.subplots()[1])


def test_events_are_marked_and_jumps_are_drawn_where_they_are(plt, bouncing):
    ax = bouncing.plot()
    assert [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"] == pytest.approx([1.0, 1.5])
    np.testing.assert_allclose(ax.lines[1].get_xdata(), [0, 0.5, 1, 1, 1.2, 1.5, 1.5, 1.6])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), [1, 0, -1, 0.5, 0.1, -0.5, 0.25, 0.05], atol=1e-9)
    ax = bouncing.plot(vars=(0, 1))
    marks = ax.lines[-1]
    np.testing.assert_allclose(np.stack([marks.get_xdata(), marks.get_ydata()]), [[0, 0], [0.5, 0.25]], atol=1e-9)


def test_complex_and_terminated_and_empty(plt):
    prob = ode.ODEProblem(lambda t, u, p: 1j * u, 1 + 0j, (0.0, 1.0))
    stop = ode.ContinuousCallback(lambda t, u, p: u.imag - 0.5, None, terminate=True)
    ended = ode.solve(prob, ode.Tsit5(), saveat=TIMES, callback=stop)
    ax = ended.plot()
    assert labels(ax)[:2] == ["Re u", "Im u"]
    assert np.all(np.isfinite(ax.lines[0].get_xdata()))
    assert ax.lines[0].get_xdata()[-1] == pytest.approx(np.arcsin(0.5))
    with pytest.raises(TypeError, match="real components"):
        ended.plot(vars=("u", "u"))
    none = ode.solve(prob, ode.Tsit5(), saveat=[])
    assert len(none.plot().lines[0].get_xdata()) == 0
    assert "0 saves" in repr(none)


def test_bands_leave_failures_out(plt, many):
    ax = many.plot(vars=["pred"])
    assert ax.get_title() == "median, 50 % and 90 % of 2 trajectories, 1 that failed left out"
    middle = (3 * np.exp(-TIMES) + 3 * np.exp(-3 * TIMES)) / 2
    np.testing.assert_allclose(ax.lines[0].get_ydata(), middle, rtol=1e-5)
    assert len(ax.collections) == 2
    lanes = jax.vmap(lambda p: ode.solve(PROB, ode.Tsit5(), p=p))(jnp.array([1.0, 3.0]))
    np.testing.assert_allclose(lanes.plot(vars=["pred"]).lines[0].get_ydata(), middle, rtol=1e-5)


def test_work_precision(plt):
    right = {"prey": np.outer(np.exp(-2 * TIMES), [1.0, 2.0]), "pred": 3 * np.exp(-2 * TIMES)}
    methods = {"5": ode.Tsit5(), "tight": {"alg": ode.Tsit5(), "abstol": 1e-12}, "7": ode.Vern7()}
    got = ode.plotting.work_precision(PROB, methods, reltols=[1e-4, 1e-7], reference=right, repeats=1)
    assert got.labels == ("5", "tight", "7")
    assert np.all(got.errors < [[1e-3, 1e-6]])
    assert np.all(got.errors[:, 1] < got.errors[:, 0]) and np.all(got.seconds > 0)
    assert np.all(got.nf[:, 1] >= got.nf[:, 0])
    np.testing.assert_array_equal(got.ax.lines[2].get_xdata(), got.errors[2])
    gradient = ode.plotting.work_precision(
        PROB, [ode.Tsit5()], reltols=[1e-6], loss=lambda sol: sol.u["pred"][-1], reference=-3 * np.exp(-2.0), repeats=1
    )
    assert gradient.errors[0, 0] < 1e-5
    with pytest.raises(ValueError, match="at least one method"):
        ode.plotting.work_precision(PROB, [])


# ---------------------------------------------------------------- tables


def test_xarray(sol, many):
    pytest.importorskip("xarray")
    data = sol.to_xarray()
    assert data.prey.dims == ("t", "prey_0") and data.pred.dims == ("t",)
    np.testing.assert_array_equal(data.prey, sol.u["prey"])
    assert data.attrs["retcode"] == "Success" and data.attrs["naccept"] == sol.stats.naccept
    assert float(data.pred.sel(t=0.5)) == sol.u["pred"][5]
    data = many.to_xarray()
    assert data.prey.dims == ("trajectory", "t", "prey_0")
    np.testing.assert_array_equal(data.pred[2], many.u["pred"][2])


def test_dataframe(sol, many):
    pytest.importorskip("pandas")
    frame = sol.to_dataframe()
    assert list(frame.columns) == ["pred", "prey[0]", "prey[1]"] and frame.index.name == "t"
    np.testing.assert_array_equal(frame["prey[1]"], sol.u["prey"][:, 1])
    frame = many.to_dataframe()
    assert frame.index.names == ["trajectory", "t"] and len(frame) == 33
    np.testing.assert_array_equal(frame.loc[2]["pred"], many.u["pred"][2])


# ---------------------------------------------------------------- files

Pair = namedtuple("Pair", "x y")


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_files_keep_every_bit(tmp_path, sol, many):
    path = sol.save(tmp_path / "decay")
    assert path.name == "decay.npz"
    back = ode.load(path)
    same(sol.u, back.u)
    same(sol.t, back.t)
    assert back.retcode is sol.retcode and back.success and len(back) == 11
    assert back.stats.nf == sol.stats.nf and back.alg == "Tsit5()"
    np.testing.assert_array_equal(back["prey[1]"], sol.u["prey"][:, 1])
    same(back[3], sol[3])
    with np.load(path, allow_pickle=False) as plain:  # by NumPy alone
        np.testing.assert_array_equal(plain["u/prey"], sol.u["prey"])
        np.testing.assert_array_equal(plain["t"], sol.t)
    back = ode.load(many.save(tmp_path / "many.npz"))
    same(many.u, back.u)
    assert not back.success and len(back) == 3 and back[1].retcode == ode.ReturnCode.NonFinite
    same(many[2].u, back[2].u)
    assert {path.name for path in tmp_path.iterdir()} == {"many.npz", "decay.npz"}  # nothing temporary is left


@pytest.mark.parametrize(
    "u0",
    [
        jnp.float32(1.5),
        jnp.ones((2, 1)) * (1 + 2j),
        [jnp.ones(2), (jnp.zeros(()), {"a": jnp.ones((0, 3))})],
        {"a": None, "b": jnp.ones(1)},
    ],
    ids=["scalar", "complex", "nested", "none"],
)
def test_files_of_odd_states(tmp_path, u0):
    got = ode.solve(ode.ODEProblem(decay, u0, (1.0, 0.0), 1.0), ode.Tsit5(), saveat=[1.0, 0.5, 0.5])
    back = ode.load(got.save(tmp_path / "odd.npz"))
    same(got.u, back.u)
    same(got.t, back.t)


def test_named_tuples_are_kept_by_name(tmp_path):
    u0 = Pair(jnp.ones(()), jnp.ones(2))
    got = ode.solve(ode.ODEProblem(decay, u0, (0.0, 1.0), 1.0), ode.Tsit5(), saveat=[1.0])
    back = ode.load(got.save(tmp_path / "pair.npz")).u
    np.testing.assert_array_equal(back.y, got.u.y)
    assert type(back).__name__ == "Pair"


def test_files_of_events(tmp_path, bouncing):
    back = ode.load(bouncing.save(tmp_path / "ball.npz"))
    np.testing.assert_array_equal(back.events.after, bouncing.events.after)
    assert back.events.count == 2


def test_files_that_are_something_else(tmp_path, sol):
    other, broken = tmp_path / "other.npz", tmp_path / "broken.npz"
    np.savez(other, t=np.zeros(3))
    broken.write_bytes(sol.save(tmp_path / "good.npz").read_bytes()[:300])
    (tmp_path / "text.npz").write_text("t, u")
    for path in (other, broken, tmp_path / "text.npz"):
        with pytest.raises(ValueError, match="is not a solution that odesens saved"):
            ode.load(path)
    with pytest.raises(FileNotFoundError):
        ode.load(tmp_path / "none.npz")
    with pytest.raises(TypeError, match="no dense output"):
        ode.load(tmp_path / "good.npz")(0.5)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, sol, monkeypatch):
    path = sol.save(tmp_path / "kept.npz")
    before = path.read_bytes()

    def fails(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises(OSError, match="no space"):
        sol.save(path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_symbolic_names(tmp_path, plt):
    pytest.importorskip("sympy")
    from odesens.symbolic import D, System, equations, parameters, t, unknowns

    x, y = unknowns("x y")
    k = parameters("k")
    prob = ode.ODEProblem(System(equations([D(x), y], [-k * x, x**2]), t), {x: 1.0}, (0.0, 1.0), {k: 2.0}, saveat=TIMES)
    got = ode.solve(prob, ode.Tsit5())
    right = np.exp(-2 * TIMES)
    ax = got.plot(vars=[x, "y", x + 1])
    assert labels(ax) == ["x", "y", "x + 1"]
    np.testing.assert_allclose(ax.lines[1].get_ydata(), right**2, rtol=1e-5)
    back = ode.load(got.save(tmp_path / "named.npz", vars=[y]))
    np.testing.assert_allclose(back["y"], right**2, rtol=1e-5)
    np.testing.assert_array_equal(back["x"], got["x"])
    with pytest.raises(KeyError, match="was not saved"):
        back["z"]
    assert "x" in got._repr_html_() and "k" in prob._repr_html_()
    pytest.importorskip("pandas")
    assert list(got.to_dataframe(vars=[y]).columns) == ["x", "y"]
    pytest.importorskip("xarray")
    np.testing.assert_array_equal(got.to_xarray().x, got["x"])


# ---------------------------------------------------------------- texts


def test_texts_are_short_and_escaped(sol, many):
    assert repr(PROB) == (
        "ODEProblem(f=decay, u0={'pred': 3., 'prey': [1., 2.]}, tspan=(0.0, 1.0), p=2.0, saveat=float64[11])"
    )
    large = ode.ODEProblem(decay, {f"x{i}": jnp.ones(1000) for i in range(100)}, (0.0, 1.0), jnp.ones(10**4))
    assert len(repr(large)) < 200
    assert "Success: 11 saves, t = 0 .. 1" in repr(sol) and "'prey': float64[11, 2]" in repr(sol)
    assert "2 Success, 1 NonFinite" in repr(many) and "2 Success, 1 NonFinite" in many._repr_html_()
    html = ode.ODEProblem(decay, {"<b>": 1.0}, (0.0, 1.0))._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html
    for shown in (sol._repr_html_(), ode.EnsembleProblem(PROB, p=jnp.ones(3))._repr_html_()):
        assert shown.startswith("<table>") and shown.count("<tr>") == shown.count("</tr>")
    rest = ode.solve(ode.SteadyStateProblem(lambda t, u, p: p - u**2, 1.0, 4.0))
    assert "Success" in repr(rest) and "u=2." in repr(rest)


def test_within_a_transformation_texts_work_and_the_rest_says_why_not(tmp_path):
    def traced(p):
        got = ode.solve(PROB, ode.Tsit5(), p=p)
        assert "float64[11, 2]" in repr(got) and "<table>" in got._repr_html_() and repr(ode.remake(PROB, p=p))
        for act in (got.plot, got.to_xarray, got.to_dataframe, lambda: got.save(tmp_path / "x")):
            with pytest.raises(TypeError, match="inside a transformation"):
                act()
        return got.u["pred"][-1]

    jax.jit(traced)(2.0)
    reduced = ode.EnsembleProblem(PROB, p=jnp.ones(2), output_func=lambda sol, i: sol.u["pred"][-1])
    with pytest.raises(TypeError, match="output_func or a reduction"):
        ode.solve(reduced, ode.Tsit5(), trajectories=2).plot()
