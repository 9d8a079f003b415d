"""Methods whose step warm-up finds, for the tests of it."""

from pmm_mcmc.engines.arguments import MethodArguments

BIAS_TARGET = 0.05  # the default

UNADJUSTED = [
    ("PoissonOLMC", {"dynamics": "overdamped"}),
    ("PoissonOLMC", {"dynamics": "overdamped", "option": 1}),
    ("PoissonOLMC", {"dynamics": "overdamped", "grid": "centred"}),
    ("PoissonULMC", {"dynamics": "underdamped"}),
    ("PoissonULMC", {"dynamics": "underdamped", "K": 4}),
    ("PoissonULMC", {"dynamics": "underdamped", "option": 1}),
    ("PoissonULMC", {"dynamics": "underdamped", "grid": "centred"}),
    ("OLMC", {"dynamics": "overdamped"}),
    ("ULMC", {"dynamics": "underdamped"}),
    ("RLMC", {"dynamics": "overdamped"}),
    ("RLMC", {"dynamics": "underdamped"}),
]
RECYCLED = ("PoissonULMC", {"dynamics": "underdamped", "scheme": "recycled"})


def settings_of(case, **more):
    return MethodArguments.checked(case[0], **case[1], **more)
