"""Stan programs that tests run."""

REGRESSION = """
parameters { real mu; real<lower=0> sigma; matrix[2, 3] b; }
model { mu ~ normal(0, 1); sigma ~ exponential(1); to_vector(b) ~ normal(1, 0.5); }
generated quantities { real noise = normal_rng(mu, sigma); }
"""

SCHOOLS = """
data { int<lower=0> J; vector[J] y; vector<lower=0>[J] sigma; }
parameters { real mu; real<lower=0> tau; vector[J] theta; }
model { mu ~ normal(0, 5); tau ~ cauchy(0, 5); theta ~ normal(mu, tau); y ~ normal(theta, sigma); }
generated quantities { vector[J] log_lik; for (j in 1:J) log_lik[j] = normal_lpdf(y[j] | theta[j], sigma[j]); }
"""
SCHOOLS_DATA = {
    "J": 8,
    "y": [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0],
    "sigma": [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0],
}
SCHOOLS_MEANS = {"mu": 4.40, "tau": 3.63}

# Children of every form that is read, and parameters that are none: a walk, a part of a vector, one with bounds.
FORMS = """
data { int G; array[G] int<lower=1> group; real scale; }
transformed data { real twice = 2 * scale; }
parameters {
  real mu; vector[2] level; real<lower=0> tau; real<lower=0.5> above; real<upper=1> below;
  real<lower=1, upper=3> within; real log_sd; real<lower=0> precision;
  vector[G] plain; vector[G] grouped; matrix[2, G] both; vector[G] by_variance;
  vector[G] by_log; vector[G] added; vector[G] looped; vector[G] child; vector[G] walk; vector[2] pieces;
  vector<lower=0>[G] positive;
}
transformed parameters { real from_precision = 1 / sqrt(precision); }
model {
  mu ~ normal(0, 1); level ~ normal(0, 1); tau ~ gamma(3, 3); above ~ gamma(3, 3); below ~ normal(0, 1);
  log_sd ~ normal(0, 1); precision ~ gamma(3, 3);
  plain ~ normal(3 * mu - 1, tau); // plain ~ normal(0, 1);
  grouped ~ student_t(4, level[group], twice * above);
  to_vector(both) ~ normal(mu, within);
  by_variance ~ normal(0, from_precision);
  by_log ~ double_exponential(scale, exp(2 * log_sd));
  target += normal_lpdf(added | mu, sqrt(tau) * scale);
  for (g in 1:G) looped[g] ~ cauchy(level[group[g]], tau);
  child ~ normal(plain, below^2 + 1);
  walk[1] ~ normal(0, 1); for (g in 2:G) walk[g] ~ normal(walk[g - 1], tau);
  pieces[1] ~ normal(mu, tau); pieces[2] ~ normal(0, 1);
  positive ~ normal(mu, tau);
}
"""
FORMS_DATA = {"G": 3, "group": [1, 2, 2], "scale": 0.7}

# Two labellings of one posterior, hundreds of posterior standard deviations apart.
MIXTURE = """
data { int N; vector[N] y; }
parameters { real<lower=0, upper=1> share; array[2] real mu; }
model {
  mu ~ normal(0, 10);
  for (n in 1:N) target += log_mix(share, normal_lpdf(y[n] | mu[1], 1), normal_lpdf(y[n] | mu[2], 1));
}
"""

# As brms 2 writes ``y ~ x + (1 | g)`` of a Poisson family.
BRMS = """functions {
}
data {
  int<lower=1> N;
  array[N] int Y;
  int<lower=1> K;
  matrix[N, K] X;
  int<lower=1> Kc;
  int<lower=1> N_1;
  int<lower=1> M_1;
  array[N] int<lower=1> J_1;
  vector[N] Z_1_1;
  int prior_only;
}
transformed data {
  matrix[N, Kc] Xc;
  vector[Kc] means_X;
  for (i in 2:K) {
    means_X[i - 1] = mean(X[, i]);
    Xc[, i - 1] = X[, i] - means_X[i - 1];
  }
}
parameters {
  vector[Kc] b;
  real Intercept;
  vector<lower=0>[M_1] sd_1;
  array[M_1] vector[N_1] z_1;
}
transformed parameters {
  vector[N_1] r_1_1;
  real lprior = 0;
  r_1_1 = (sd_1[1] * (z_1[1]));
  lprior += student_t_lpdf(Intercept | 3, 1.4, 2.5);
  lprior += student_t_lpdf(sd_1 | 3, 0, 2.5)
    - 1 * student_t_lccdf(0 | 3, 0, 2.5);
}
model {
  if (!prior_only) {
    vector[N] mu = rep_vector(0.0, N);
    mu += Intercept;
    for (n in 1:N) {
      mu[n] += r_1_1[J_1[n]] * Z_1_1[n];
    }
    target += poisson_log_glm_lpmf(Y | Xc, mu, b);
  }
  target += lprior;
  target += std_normal_lpdf(z_1[1]);
}
generated quantities {
  real b_Intercept = Intercept - dot_product(means_X, b);
}
"""

# Effects by hand: as textbooks write them, and as brms 2 does, by rows of an array and correlated.
OFFSETS = """
functions {
  matrix scale_r_cor(matrix z, vector SD, matrix L) { return transpose(diag_pre_multiply(SD, L) * z); }
}
data { int G; array[4] int group; vector[4] x; }
parameters {
  real mu; real<lower=0> tau; real<lower=0, upper=3> wide; vector<lower=0>[2] sd; vector<lower=0>[3] sds;
  vector[G] plain; vector[G] backwards; vector[G] looped; array[2] vector[G] rows; matrix[3, G] together;
  cholesky_factor_corr[3] L; vector[G] alone; vector[G] squared;
}
transformed parameters {
  vector[G] theta = mu + tau * plain;
  vector[G] back; vector[G] loop; vector[G] first; vector[G] second; matrix[G, 3] r;
  back = backwards .* exp(mu) * 2 - 1 + mu;
  for (g in 1:G) loop[g] = 3 + looped[g] * wide;
  first = (sd[1] * (rows[1])); second = (sd[2] * (rows[2]));
  r = scale_r_cor(together, sds, L);
}
model {
  mu ~ normal(0, 1); tau ~ gamma(3, 3); sd ~ gamma(3, 3); sds ~ gamma(3, 3); L ~ lkj_corr_cholesky(2);
  plain ~ std_normal(); backwards ~ normal(0, 1); for (g in 1:G) looped[g] ~ normal(0, 1);
  target += std_normal_lpdf(rows[1]); target += std_normal_lpdf(rows[2]);
  target += std_normal_lpdf(to_vector(together));
  alone ~ std_normal(); squared ~ std_normal();
  x ~ normal(theta[group] + back[group] + loop[group] + first[group] + second[group] .* x + r[group, 3], 1);
  target += -0.1 * dot_self(tau * squared .* squared);
}
"""
OFFSETS_DATA = {"G": 3, "group": [1, 2, 3, 1], "x": [1.0, 2.0, 3.0, 0.0]}

# Counts, so far off at some starts that curvatures leave no digit of a group.
COUNTS = """
data { int G; array[G] int y; vector[G] x; }
parameters { vector<lower=0>[2] sd; cholesky_factor_corr[2] L; matrix[2, G] z; }
transformed parameters { matrix[G, 2] r = (diag_pre_multiply(sd, L) * z)'; }
model {
  sd ~ normal(0, 3); to_vector(z) ~ std_normal();
  y ~ poisson_log(r[, 1] + r[, 2] .* x);
}
"""
COUNTS_DATA = {"G": 6, "y": [1, 0, 2, 1, 3, 0], "x": [0.5, -1.0, 1.5, 0.0, -0.5, 1.0]}
