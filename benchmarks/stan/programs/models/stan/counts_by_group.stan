// Counts with an intercept for each group, as one writes them down.
data { int N; int J; array[N] int<lower=1, upper=J> group; vector[N] x; array[N] int<lower=0> y; }
parameters { real mu; real<lower=0> tau; vector[J] intercept; real slope; }
model {
  mu ~ normal(0, 2);
  tau ~ normal(0, 1);
  intercept ~ normal(mu, tau);
  slope ~ normal(0, 1);
  y ~ poisson_log(intercept[group] + slope * x);
}
