/* A standard normal density of n coordinates, shifted by data[0], for LogDensity.from_pointer. */
#include <stddef.h>

int normal(size_t n, const double *x, double *gradient, double *value, void *data) {
    const double mean = data ? *(const double *)data : 0.0;
    *value = 0.0;
    for (size_t i = 0; i < n; i++) {
        gradient[i] = mean - x[i];
        *value -= 0.5 * gradient[i] * gradient[i];
    }
    return 0;
}

/* The same, with a code where the first coordinate is above 1, and numbers beside it that do not count. */
int cut(size_t n, const double *x, double *gradient, double *value, void *data) {
    normal(n, x, gradient, value, data);
    return x[0] > 1.0 ? 3 : 0;
}

int never(size_t n, const double *x, double *gradient, double *value, void *data) {
    (void)n, (void)x, (void)gradient, (void)value, (void)data;
    return 7;
}

#include <math.h>
/* Logistic regression, such as a Stan model: data are the number of rows, their n covariates, and their outcomes. */
int logistic(size_t n, const double *x, double *gradient, double *value, void *data) {
    const double *rows = (const double *)data + 1;
    const size_t m = (size_t)*(const double *)data;
    *value = 0.0;
    for (size_t j = 0; j < n; j++) {
        gradient[j] = -x[j];
        *value -= 0.5 * x[j] * x[j];
    }
    for (size_t i = 0; i < m; i++) {
        double eta = 0.0;
        for (size_t j = 0; j < n; j++) eta += rows[i * n + j] * x[j];
        const double y = rows[m * n + i], one = exp(-fabs(eta));
        *value += y * eta - fmax(eta, 0.0) - log1p(one);
        const double off = y - (eta > 0.0 ? 1.0 / (1.0 + one) : one / (1.0 + one));
        for (size_t j = 0; j < n; j++) gradient[j] += off * rows[i * n + j];
    }
    return 0;
}

/* Neal's funnel in many dimensions. */
int funnel(size_t n, const double *x, double *gradient, double *value, void *data) {
    (void)data;
    *value = -x[0] * x[0] / 18.0 - 0.5 * (double)(n - 1) * x[0];
    gradient[0] = -x[0] / 9.0 - 0.5 * (double)(n - 1);
    const double precision = exp(-x[0]);
    for (size_t i = 1; i < n; i++) {
        gradient[i] = -precision * x[i];
        *value += 0.5 * gradient[i] * x[i];
        gradient[0] += 0.5 * precision * x[i] * x[i];
    }
    return 0;
}
