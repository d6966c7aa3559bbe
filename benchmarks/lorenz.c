/* The floor of lorenz_ensemble.py: adaptive Tsit5 on Lorenz' equations, lane after lane, in plain C.

   A record of the accepted steps (t is not needed: the equations are autonomous) and the discrete adjoint over it.
   Steps: factor 0.9 err^(-1/5) within [0.2, 10], root mean square norm, as in diffrax. Parameters: sigma, rho, beta,
   `stride` numbers apart from lane to lane (0: shared, the gradient is their sum). Loss: the sum of the end states. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double A[7][6] = {
    {0},
    {0.161},
    {-0.008480655492356989, 0.335480655492357},
    {2.8971530571054935, -6.359448489975075, 4.3622954328695815},
    {5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525},
    {5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383},
    {0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774}};
static const double E[7] = {-0.00178001105222577714, -0.0008164344596567469, 0.007880878010261995, -0.1447110071732629,
                            0.5823571654525552,      -0.45808210592918697,   0.015151515151515152};

typedef struct { double h, u[3], k[7][3]; } Step;

static inline void field(const double *u, const double *p, double *d) {
    d[0] = p[0] * (u[1] - u[0]);
    d[1] = u[0] * (p[1] - u[2]) - u[1];
    d[2] = u[0] * u[1] - p[2] * u[2];
}

static inline void pull(const double *u, const double *p, const double *w, double *ub, double *pb) {
    ub[0] += -p[0] * w[0] + (p[1] - u[2]) * w[1] + u[1] * w[2];
    ub[1] += p[0] * w[0] - w[1] + u[0] * w[2];
    ub[2] += -u[0] * w[1] - p[2] * w[2];
    pb[0] += w[0] * (u[1] - u[0]);
    pb[1] += w[1] * u[0];
    pb[2] -= w[2] * u[2];
}

static inline void stage(int s, double h, const double *u, double k[7][3], double *z) {
    for (int i = 0; i < 3; i++) {
        double sum = 0;
        for (int j = 0; j < s; j++) sum += A[s][j] * k[j][i];
        z[i] = u[i] + h * sum;
    }
}

/* One lane from u in place; accepted steps into `record` where it is not NULL. The number of them, -1 if too many. */
static long solve(double *u, const double *p, double t1, double tol, Step *record, long most) {
    double t = 0, h = 1e-3, z[3], k[7][3];
    long n = 0;
    field(u, p, k[0]);
    while (t < t1) {
        int last = t + h >= t1;
        if (last) h = t1 - t;
        for (int s = 1; s < 7; s++) {
            stage(s, h, u, k, z);
            field(z, p, k[s]);
        }
        double norm = 0;
        for (int i = 0; i < 3; i++) {
            double e = 0;
            for (int s = 0; s < 7; s++) e += E[s] * k[s][i];
            e *= h / (tol + tol * fmax(fabs(u[i]), fabs(z[i])));
            norm += e * e;
        }
        norm = sqrt(norm / 3);
        if (norm < 1) {
            if (n >= most) return -1;
            if (record) {
                record[n].h = h;
                memcpy(record[n].u, u, sizeof z);
                memcpy(record[n].k, k, sizeof k);
            }
            n++;
            t = last ? t1 : t + h;
            memcpy(u, z, sizeof z);
            memcpy(k[0], k[6], sizeof z);
        }
        double factor = norm > 0 ? 0.9 * pow(norm, -0.2) : 10;
        h *= factor > 10 ? 10 : factor < 0.2 ? 0.2 : factor;
    }
    return n;
}

static void adjoint(const Step *record, long n, const double *p, double *pb) {
    double lam[3] = {1, 1, 1};
    while (n--) {
        const Step *r = record + n;
        double kb[7][3] = {{0}}, ub[3] = {0}, z[3];
        for (int s = 6; s >= 0; s--) {
            double zb[3] = {0};
            if (s == 6) memcpy(zb, lam, sizeof lam);
            stage(s, r->h, r->u, (double(*)[3])r->k, z);
            pull(z, p, kb[s], zb, pb);
            for (int i = 0; i < 3; i++) {
                ub[i] += zb[i];
                for (int j = 0; j < s; j++) kb[j][i] += r->h * A[s][j] * zb[i];
            }
        }
        memcpy(lam, ub, sizeof lam);
    }
}

/* End states of all lanes into `ends`; the gradient into `pbar` where it is not NULL. Steps of all lanes together. */
long ensemble(const double *u0, const double *p, long stride, long lanes, double t1, double tol, long most,
              double *ends, double *pbar) {
    Step *record = pbar ? malloc(most * sizeof(Step)) : NULL;
    long all = 0;
    for (long m = 0; m < lanes; m++) {
        memcpy(ends + 3 * m, u0 + 3 * m, 3 * sizeof(double));
        long n = solve(ends + 3 * m, p + stride * m, t1, tol, record, most);
        if (n < 0) {
            all = -1;
            break;
        }
        all += n;
        if (pbar) adjoint(record, n, p + stride * m, pbar + stride * m);
    }
    free(record);
    return all;
}
