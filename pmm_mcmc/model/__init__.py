"""Log densities from PyMC and JAX, their structure, outputs, starts and fingerprints.  Nothing here knows of sampling."""
