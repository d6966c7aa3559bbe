"""Classical methods of order 1 to 4 and the Bogacki-Shampine pair, all in exact rationals.

The two-stage methods of order 2 share ``b_2 = 1 / (2 c_2)``, Euler's method as the embedded formula, and the free
interpolant ``b_2(theta) = theta**2 / (2 c_2)``, ``b_1(theta) = theta - b_2(theta)`` of order 2, which is the only one
of degree 2.
"""

from odesens.methods.tableaus.base import Tableau

EULER = Tableau(
    name="Euler",
    order=1,
    embedded_order=None,
    dense_order=1,
    fsal=False,
    citation=(
        "Euler, Institutionum calculi integralis I (1768), section 650; Hairer, Norsett, Wanner, Solving Ordinary "
        "Differential Equations I, 2nd ed. (1993), section I.7."
    ),
    c=("0",),
    a=((),),
    b=("1",),
    b_err=None,
    b_dense=(("1",),),
)


MIDPOINT = Tableau(
    name="Midpoint",
    order=2,
    embedded_order=1,
    dense_order=2,
    fsal=False,
    citation=(
        "Runge, Ueber die numerische Aufloesung von Differentialgleichungen, Math. Ann. 46 (1895) 167-178; Hairer, "
        "Norsett, Wanner, Solving Ordinary Differential Equations I, 2nd ed. (1993), section II.1, eq. (1.4)."
    ),
    c=("0", "1/2"),
    a=(
        (),
        ("1/2",),
    ),
    b=("0", "1"),
    b_err=("-1", "1"),
    b_dense=(
        ("1", "-1"),
        ("0", "1"),
    ),
)


HEUN = Tableau(
    name="Heun",
    order=2,
    embedded_order=1,
    dense_order=2,
    fsal=False,
    citation=(
        "Heun, Neue Methoden zur approximativen Integration der Differentialgleichungen einer unabhaengigen "
        "Veraenderlichen, Z. Math. Phys. 45 (1900) 23-38; the explicit trapezoidal rule."
    ),
    c=("0", "1"),
    a=(
        (),
        ("1",),
    ),
    b=("1/2", "1/2"),
    b_err=("-1/2", "1/2"),
    b_dense=(
        ("1", "-1/2"),
        ("0", "1/2"),
    ),
)


RALSTON = Tableau(
    name="Ralston",
    order=2,
    embedded_order=1,
    dense_order=2,
    fsal=False,
    citation=(
        "Ralston, Runge-Kutta methods with minimum error bounds, Math. Comp. 16 (1962) 431-437; the second-order "
        "formula of least error bound."
    ),
    c=("0", "2/3"),
    a=(
        (),
        ("2/3",),
    ),
    b=("1/4", "3/4"),
    b_err=("-3/4", "3/4"),
    b_dense=(
        ("1", "-3/4"),
        ("0", "3/4"),
    ),
)


# The interpolant is the one of degree 3 and order 3 with b_2(theta) = b_3(theta).
RK4 = Tableau(
    name="RK4",
    order=4,
    embedded_order=None,
    dense_order=3,
    fsal=False,
    citation=(
        "Kutta, Beitrag zur naeherungsweisen Integration totaler Differentialgleichungen, Z. Math. Phys. 46 (1901) "
        "435-453; Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, 2nd ed. (1993), section II.1, "
        "table 1.2, left; interpolant: section II.6."
    ),
    c=("0", "1/2", "1/2", "1"),
    a=(
        (),
        ("1/2",),
        ("0", "1/2"),
        ("0", "0", "1"),
    ),
    b=("1/6", "1/3", "1/3", "1/6"),
    b_err=None,
    b_dense=(
        ("1", "-3/2", "2/3"),
        ("0", "1", "-2/3"),
        ("0", "1", "-2/3"),
        ("0", "-1/2", "2/3"),
    ),
)


# The cubic Hermite interpolant of u and f at both ends of the step, written on the stages.
BS3 = Tableau(
    name="BS3",
    order=3,
    embedded_order=2,
    dense_order=3,
    fsal=True,
    citation=(
        "Bogacki, Shampine, A 3(2) pair of Runge-Kutta formulas, Appl. Math. Lett. 2 (1989) 321-325; interpolant: "
        "cubic Hermite, Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, 2nd ed. (1993), section "
        "II.6."
    ),
    c=("0", "1/2", "3/4", "1"),
    a=(
        (),
        ("1/2",),
        ("0", "3/4"),
        ("2/9", "1/3", "4/9"),
    ),
    b=("2/9", "1/3", "4/9", "0"),
    b_err=("-5/72", "1/12", "1/9", "-1/8"),
    b_dense=(
        ("1", "-4/3", "5/9"),
        ("0", "1", "-2/3"),
        ("0", "4/3", "-8/9"),
        ("0", "-1", "1"),
    ),
)
