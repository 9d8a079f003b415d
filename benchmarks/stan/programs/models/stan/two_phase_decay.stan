// Concentrations that decay in two phases, their rates in order.
data { int N; vector[N] t; vector<lower=0>[N] y; }
parameters { simplex[2] share; positive_ordered[2] rate; real<lower=0> scale; real<lower=0> sigma; }
model {
  rate ~ lognormal(0, 1);
  scale ~ lognormal(2, 1);
  sigma ~ normal(0, 0.3);
  y ~ lognormal(log(scale * (share[1] * exp(-rate[1] * t) + share[2] * exp(-rate[2] * t))), sigma);
}
