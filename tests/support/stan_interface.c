/* The part of BridgeStan's C interface that a sampler needs, for one model written by hand:
   parameters { real mu; real<lower=0> sigma; matrix[2,3] b; } generated quantities { real noise = normal_rng(mu, 1) }
   with mu ~ normal(0, 1), sigma ~ lognormal(0, 1), b ~ normal(0, sigma).  As in Stan, b is in column-major order. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int bs_major_version = 2, bs_minor_version = 9, bs_patch_version = 0;

typedef struct { double most; } model;
typedef struct { unsigned long long state; } rng;

static int fail(char **message, const char *text) {
    if (message) *message = strdup(text);
    return -1;
}
model *bs_model_construct(const char *data, unsigned int seed, char **message) {
    (void)seed, (void)message;
    model *m = malloc(sizeof(model));
    m->most = strcmp(data, "nowhere") ? 1e300 : -1e300;
    return m;
}
void bs_model_destruct(model *m) { free(m); }
void bs_free_error_msg(char *message) { free(message); }
const char *bs_name(const model *m) { (void)m; return "by_hand"; }
#ifdef THREADS
const char *bs_model_info(const model *m) { (void)m; return "Compiled with: STAN_THREADS=true"; }
#else
const char *bs_model_info(const model *m) { (void)m; return "Compiled with: STAN_THREADS=false"; }
#endif
int bs_param_num(const model *m, bool tp, bool gq) { (void)m, (void)tp; return gq ? 9 : 8; }
int bs_param_unc_num(const model *m) { (void)m; return 8; }
const char *bs_param_names(const model *m, bool tp, bool gq) {
    (void)m, (void)tp;
    return gq ? "mu,sigma,b.1.1,b.2.1,b.1.2,b.2.2,b.1.3,b.2.3,noise" : "mu,sigma,b.1.1,b.2.1,b.1.2,b.2.2,b.1.3,b.2.3";
}
const char *bs_param_unc_names(const model *m) {
    (void)m;
    return "mu,sigma,b.1.1,b.2.1,b.1.2,b.2.2,b.1.3,b.2.3";
}
rng *bs_rng_construct(unsigned int seed, char **message) {
    (void)message;
    rng *r = malloc(sizeof(rng));
    r->state = seed;
    return r;
}
void bs_rng_destruct(rng *r) { free(r); }
int bs_param_constrain(const model *m, bool tp, bool gq, const double *x, double *theta, rng *r, char **message) {
    (void)m, (void)tp;
    memcpy(theta, x, 8 * sizeof(double));
    theta[1] = exp(x[1]);
    if (gq && !r) return fail(message, "no generator");
    if (gq) theta[8] = x[0] + (double)(r->state % 1000) / 1000.0 - 0.5;
    return 0;
}
int bs_param_unconstrain(const model *m, const double *theta, double *x, char **message) {
    (void)m;
    if (!(theta[1] >= 0.0)) return fail(message, "sigma is negative, but must be greater than or equal to 0");
    memcpy(x, theta, 8 * sizeof(double));
    x[1] = log(theta[1]);
    return 0;
}
int bs_log_density_gradient(const model *m, bool propto, bool jacobian, const double *x, double *value,
                            double *gradient, char **message) {
    if (!propto || !jacobian) return fail(message, "flags");
    if (!(x[0] < m->most)) return fail(message, "normal_lpdf: Location parameter is inf");
    const double precision = exp(-2.0 * x[1]);
    *value = -0.5 * (x[0] * x[0] + x[1] * x[1]) - 6.0 * x[1];
    gradient[0] = -x[0];
    gradient[1] = -x[1] - 6.0;
    for (int i = 2; i < 8; i++) {
        gradient[i] = -precision * x[i];
        *value += 0.5 * gradient[i] * x[i];
        gradient[1] += precision * x[i] * x[i];
    }
    return 0;
}

/* Looked up when a bridgestan.StanModel is made, but not called. */
#define UNUSED(name) int name(void) { return -1; }
void bs_set_print_callback(void *callback, char **message) { (void)callback, (void)message; }
UNUSED(bs_param_unconstrain_json)
UNUSED(bs_param_initialize)
UNUSED(bs_log_density)
UNUSED(bs_log_density_hessian)
UNUSED(bs_log_density_hessian_vector_product)
