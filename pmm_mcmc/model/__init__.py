"""Log densities from PyMC and JAX, their structure, outputs and initial points.  It knows nothing of sampling."""
