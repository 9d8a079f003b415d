"""Log densities from PyMC and JAX, their structure, outputs and starts.  Nothing here knows of sampling."""
