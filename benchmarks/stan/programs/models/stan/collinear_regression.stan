// A regression on two covariates that are nearly one.
data { int N; matrix[N, 3] X; vector[N] y; }
parameters { real alpha; vector[3] beta; real<lower=0> sigma; }
model { y ~ student_t(4, alpha + X * beta, sigma); beta ~ normal(0, 2); sigma ~ exponential(1); }
